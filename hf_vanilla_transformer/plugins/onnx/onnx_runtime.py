"""ONNX: runs on most platforms. Write its graphs, and run them with ONNX Runtime through transformers' `generate`."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import transformers
from packaging.version import Version
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ...errors import MissingExtraError, UserError
from ...files import import_extra
from ...inference.runtime import Format
from ...loading import load_config, load_generation_config, load_tokenizer
from ...model.cache_vanilla_transformer import CACHE, accept_past_key_values
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...model.text_rules_vanilla_transformer import num_positions
from .onnx_graphs import Graph, session_options

_GRAPHS = ("encoder", "prefill", "decode")
_USAGE = """Any build of ONNX Runtime can run the graphs. Run `encoder.onnx` once per sentence (tokenised with
`tokenizer.json`, ending with `</s>`), `prefill.onnx` for the first output token, which also returns the attention keys
and values, and `decode.onnx` for each further token, which takes and returns them. `export.json` lists all inputs and
outputs. In Python, `transformers.exporters` runs the graphs. It imports and calls what `export.json` names, so use it
only for an export of your own:

    from transformers.exporters import ExportedModel
    exported = ExportedModel.from_pretrained("THIS_FOLDER", trust_remote_code=True)  # for its config class
    exported.runners["encoder"](input_ids=..., attention_mask=...)"""


def import_exporters() -> ModuleType:
    """Return the module `transformers.exporters`, which writes and runs ONNX graphs.

    Raises:
        ImportError: if ONNX Runtime or onnxscript is not installed, or transformers is too old.
    """
    for module in ("onnxruntime", "onnxscript"):
        import_extra(module, "export")
    if Version(transformers.__version__) < Version("5.23"):
        raise MissingExtraError(f"ONNX needs transformers 5.23 or newer, but {transformers.__version__} is installed.")
    return import_module("transformers.exporters")


class OnnxModel(VanillaTransformerForConditionalGeneration):
    """An ONNX export with the `generate` method of transformers; ONNX Runtime runs the encoder and each decoder step.

    The torch modules are on the meta device and have no weights.

    Args:
        folder: a folder written by `exports.export_model`.

    Raises:
        ImportError: if ONNX Runtime is not installed.
    """

    returns_scores = False

    def __init__(self, folder: str):
        options = session_options()
        config = load_config(folder)
        settings = load_generation_config(folder, config)
        # transformers' generate() needs the model's methods, but never its weights
        with torch.device("meta"):
            super().__init__(config)
        self.generation_config = settings
        self.graphs = {name: Graph(Path(folder, f"{name}.onnx"), options) for name in _GRAPHS}
        self.tokenizer = load_tokenizer(folder)
        self.eval()

    @property
    def device(self) -> torch.device:
        # the device of input and output ids
        return torch.device("cpu")

    def _max_output_tokens(self) -> int:
        return num_positions(self.config, is_export=True)

    def attention(self, inputs: Mapping[str, torch.Tensor], kind: str = "cross") -> None:
        """Return nothing: the graphs have no outputs for attention weights."""

    def generate(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: object
    ) -> Any:
        """Return the generated ids (B, T), starting with the decoder start token, for `input_ids` (B, S).

        Args:
            attention_mask: (B, S); by default everything but padding.
            settings: keyword arguments of `GenerationMixin.generate`; it always uses the cache.

        Raises:
            ValueError: if the source or the output is longer than the position table of the export, or
                `output_sequence_scores` is requested.
        """
        if settings.pop("output_sequence_scores", False):
            raise UserError("ONNX exports return no scores of hypotheses; use torch or CTranslate2 for these.")
        self._check_length(input_ids.shape[1])
        pad_token_id = self.config.pad_token_id
        assert pad_token_id is not None  # every model has one
        mask = input_ids.ne(pad_token_id).long() if attention_mask is None else attention_mask
        # once for all steps and beams
        states = self.graphs["encoder"]({"input_ids": input_ids, "attention_mask": mask})
        _check_shape("encoder", states, (*input_ids.shape, self.config.d_model))
        output = BaseModelOutput(last_hidden_state=states)
        settings["use_cache"] = True
        return super().generate(input_ids, attention_mask=mask, encoder_outputs=output, **settings)

    @accept_past_key_values
    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        encoder_outputs: BaseModelOutput,
        cache: EncoderDecoderCache,
        attention_mask: torch.Tensor,
        **others: object,
    ) -> Seq2SeqLMOutput:
        """Run one decoding step: `decoder_input_ids` (B, 1) to logits (B, 1, vocab_size) and the updated cache."""
        self._check_length(cache.get_seq_length() + decoder_input_ids.shape[1])
        tensors: dict[str, Any] = {
            "decoder_input_ids": decoder_input_ids,
            "encoder_outputs.last_hidden_state": encoder_outputs.last_hidden_state,
            "attention_mask": attention_mask,
        }
        name = "decode" if cache.get_seq_length() else "prefill"
        logits = self.graphs[name](tensors, cache)
        _check_shape(name, logits, (*decoder_input_ids.shape, self.config.vocab_size))
        caches: dict[str, Any] = {CACHE: cache}
        return Seq2SeqLMOutput(logits=logits, **caches)

    def _check_length(self, length: int) -> None:
        limit = self._max_output_tokens()
        if length > limit:
            raise UserError(f"The export has {limit} positions, but the text needs {length}. Shorten it.")


def _check_shape(name: str, result: torch.Tensor, expected: tuple[int, ...]) -> None:
    if result.shape != expected or not result.is_floating_point():
        actual = f"{result.dtype} {tuple(result.shape)}"
        raise UserError(f"{name}.onnx returned {actual} instead of numbers {expected}: it is not of this model.")


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path, quantization: str | None) -> None:
    """Export the graphs of a model to `target`."""
    exporters = import_exporters()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    # ONNX Runtime has few operators in half precision on CPUs
    model.float().config.dtype = torch.float32
    # transformers' Trainer switches it off, but the graphs of single steps need it
    model.config.use_cache = True
    for stack in (model.get_encoder(), model.get_decoder()):
        # a stack is traced without the whole model, and so with an embedding of its own
        if embedding := vars(stack).pop("embed_tokens", None):
            stack.embed_tokens = embedding
        # extends a table of sinusoids to this length
        stack.embed_positions(0, num_positions(stack.config, is_export=True))
    exporter = OnnxExporter()
    config = OnnxConfig(dynamic=True)
    # two sentences of different length, so that neither the batch nor the padding is traced as a constant
    sample: dict = {"input_ids": torch.tensor([[4, 5, 6, 2], [4, 5, 2, 0]])}
    sample["attention_mask"] = sample["input_ids"].ne(0).long()

    with _silence_tracing():
        encoder = exporter.export(model.get_encoder(), sample, config)
        # tracing would turn a length of 1 into a constant
        sample["decoder_input_ids"] = torch.tensor([[1, 4, 5], [1, 6, 7]])
        # return_dict_in_generate selects the decoding loop of transformers instead of the fast search
        search = GenerationConfig(num_beams=1, use_cache=True, return_dict_in_generate=True)
        steps = exporter.export_for_generation(model, sample, config, generation_config=search)
        exporters.ExportedModel(
            {"encoder": encoder.components["model"], **steps.components},
            "onnx",
            config=model.config,
            generation_config=model.generation_config,
        ).save_pretrained(target)
    for file in target.glob("*.onnx"):
        _remove_traces(file)


def _remove_traces(file: Path) -> None:
    """Remove the stack traces that torch writes into every node: most of a graph, and full of this machine's paths."""
    onnx = import_extra("onnx", "export")
    graph = onnx.load(str(file), load_external_data=False)
    for node in (*graph.graph.node, *(node for function in graph.functions for node in function.node)):
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(graph, str(file))


@contextmanager
def _silence_tracing() -> Iterator[None]:
    """Suppress the warnings and messages that torch and transformers print for developers during tracing."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


FORMAT = Format(
    name="onnx",
    title="ONNX",
    files=("*.onnx", "*.onnx.data"),
    usage=_USAGE,
    check=import_exporters,
    recognises=lambda folder: all((folder / f"{name}.onnx").is_file() for name in _GRAPHS),
    write=_write,
    load=OnnxModel,
)
