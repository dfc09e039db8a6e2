"""Models for other runtimes: CTranslate2, which decodes fast on CPUs and GPUs, and ONNX, which runs nearly anywhere.

Imported by `--backend` too: a model of either kind has a `generate`, so that everything else need not know.
"""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation_vanilla_transformer import OUTPUT_MARGIN, gnmt_length_penalty
from .layers_vanilla_transformer import sinusoids
from .loading import load, load_model, loading
from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
SETTINGS = "vanilla_transformer"  # folder of an export that holds the model's own configuration

_MANIFEST = "export.json"  # what transformers writes beside ONNX graphs

_README = """# A {runtime} export of a Transformer

Made by hf-vanilla-transformer from {name}{details}. To run it:

    pip install "hf-vanilla-transformer[export]"
    vanilla-transformer translate THIS_FOLDER --backend {backend} < in.txt > out.txt

{inside}
"""
_INSIDE_CTRANSLATE2 = """`ctranslate2.Translator(THIS_FOLDER)` loads it directly; its input are the tokens of
`tokenizer.json`, with `</s>`."""
_INSIDE_ONNX = """Any ONNX Runtime can run the graphs: `encoder.onnx` once for a sentence (tokens of `tokenizer.json`,
with `</s>`), `prefill.onnx` for the first token, which gives the keys and values of the attention as well, and
`decode.onnx` for each further token, with those. `export.json` names all inputs and outputs. From Python,
`transformers.exporters` runs them:

    from transformers.exporters import ExportedModel
    exported = ExportedModel.from_pretrained("THIS_FOLDER", trust_remote_code=True)  # for its configuration
    exported.runners["encoder"](input_ids=..., attention_mask=...)"""


def _ctranslate2() -> Any:
    try:
        import ctranslate2
    except ImportError as error:
        raise ImportError('CTranslate2 is not installed: pip install "hf-vanilla-transformer[export]".') from error
    return ctranslate2


def _positions(config: Any) -> int:
    """How many positions an export has: sinusoids go on for ever, and it has room beyond what training saw."""
    return config.max_position_embeddings * (2 if config.position_embedding == "sinusoidal" else 1)


def _register_loader() -> None:
    """Tells CTranslate2's converter of the weights' names and of all that it cannot see in them."""
    from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader, register_loader
    from ctranslate2.specs.transformer_spec import TransformerSpec

    @register_loader("VanillaTransformerConfig")
    class VanillaTransformerLoader(BartLoader):
        architecture_name = "AutoModelForSeq2SeqLM"

        def get_model_spec(self, model):
            config = model.config
            if {config.d_k, config.d_v} != {config.d_model / config.num_heads}:
                raise ValueError("CTranslate2 has only heads that are d_model / num_heads wide.")
            if config.activation_function not in _SUPPORTED_ACTIVATIONS:
                raise ValueError(f"CTranslate2 does not know the activation {config.activation_function!r}.")
            self.positions = _positions(config)
            spec = TransformerSpec.from_config(
                (config.num_encoder_layers, config.num_decoder_layers),
                config.num_heads,
                pre_norm=False,
                activation=_SUPPORTED_ACTIVATIONS[config.activation_function],
            )
            self.set_encoder(spec.encoder, model.model.encoder)
            self.set_decoder(spec.decoder, model.model.decoder)
            self.set_linear(spec.decoder.projection, model.lm_head)
            return spec

        def set_position_encodings(self, spec, module):
            if hasattr(module, "table"):
                spec.encodings = sinusoids(self.positions, module.table.shape[1]).float()
            else:
                spec.encodings = module.weight

        def set_config(self, config, model, tokenizer):
            super().set_config(config, model, tokenizer)
            config.layer_norm_epsilon = model.config.layer_norm_eps


def export_ctranslate2(folder: str, output_dir: str, quantization: str = "float32") -> None:
    """Writes the model saved in `folder` for CTranslate2, with its tokenizer, into the new folder `output_dir`.

    Raises:
        ImportError: where CTranslate2 is missing.
        ValueError: for a model that CTranslate2 cannot run, an unknown quantisation or a folder that is in use.
    """
    from transformers import AutoTokenizer

    _ctranslate2()
    from ctranslate2.converters import TransformersConverter

    if quantization not in QUANTIZATIONS:
        raise ValueError(f"There is no quantisation {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}.")
    _register_loader()
    with _new_folder(output_dir) as made:
        model, tokenizer = load_model(folder), load(AutoTokenizer, folder)  # whole, or a clear error
        config, generation_config = model.config, model.generation_config
        del model  # the converter loads it again
        TransformersConverter(str(folder), trust_remote_code=False).convert(str(made), quantization=quantization)
        tokenizer.save_pretrained(made)
        config.save_pretrained(made / SETTINGS)
        generation_config.save_pretrained(made / SETTINGS)
        about = {"runtime": "CTranslate2", "backend": "ctranslate2", "inside": _INSIDE_CTRANSLATE2}
        text = _README.format(name=folder, details=f", quantisation {quantization}", **about)
        (made / "README.md").write_text(text, encoding="utf-8")


@contextmanager
def _new_folder(output_dir: str) -> Iterator[Path]:
    """A place to write, which becomes `output_dir` once all is written."""
    target = Path(output_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"{target} is in use; give a new folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as place:
        yield Path(place, "export")
        Path(place, "export").replace(target)


def export_format(folder: str) -> str | None:
    """What `folder` is an export for ("ctranslate2", "onnx"), or None."""
    if Path(folder, SETTINGS).is_dir():
        return "ctranslate2"
    return "onnx" if Path(folder, _MANIFEST).is_file() else None


def load_export(folder: str, backend: str) -> "CTranslate2Model | OnnxModel":
    """An export for `backend`, or a saved model by way of a temporary one.

    Raises:
        ImportError: where the runtime is missing.
        ValueError: for an export for something else.
    """
    export, load_backend = {
        "ctranslate2": (export_ctranslate2, CTranslate2Model),
        "onnx": (export_onnx, OnnxModel),
    }[backend]
    found = export_format(folder)
    if found == backend:
        with loading(folder):
            return load_backend(folder)
    if found:
        raise ValueError(f"{folder} is an export for {found}, not for {backend}.")
    with tempfile.TemporaryDirectory() as place:
        export(folder, str(Path(place, "export")))
        return load_backend(str(Path(place, "export")))


class CTranslate2Model:
    """An export as something with a `generate`, which is what `translation.translate` asks of a model.

    CTranslate2 knows log P / |Y|^alpha and one limit a batch. For a model with the GNMT penalty its n best are found
    by log P and scored again by the GNMT formula; a sentence that went beyond its own limit is decoded once more.

    Args:
        folder: what `export_ctranslate2` wrote.
        device: "cpu", "cuda" or "auto".
    """

    training = False
    device = torch.device("cpu")  # of the ids that go in and out

    def __init__(self, folder: str, device: str = "auto"):
        from transformers import AutoTokenizer, GenerationConfig

        ctranslate2 = _ctranslate2()
        self.config = VanillaTransformerConfig.from_pretrained(Path(folder, SETTINGS))
        self.generation_config = GenerationConfig.from_pretrained(Path(folder, SETTINGS))
        self.tokenizer = load(AutoTokenizer, folder)
        threads = torch.get_num_threads()
        self.translator = ctranslate2.Translator(str(folder), device=device, intra_threads=threads)

    def eval(self) -> "CTranslate2Model":
        return self

    def train(self, mode: bool = True) -> "CTranslate2Model":
        return self

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
    ) -> torch.Tensor:
        """Tokens (B, T), start token and padding included, for the sources (B, S)."""
        pad: Any = self.config.pad_token_id
        mask = input_ids.ne(pad) if attention_mask is None else attention_mask.bool()
        sources = [row[real].tolist() for row, real in zip(input_ids, mask, strict=True)]
        beams = num_beams or self.generation_config.num_beams or 1
        alpha = self.generation_config.length_penalty if length_penalty is None else length_penalty
        positions = _positions(self.config)
        limits = [max_new_tokens or min(len(source) + OUTPUT_MARGIN, positions) for source in sources]
        outputs = self._search(sources, beams, alpha, max(limits))
        for i, (_, longest) in enumerate(outputs):
            if longest > limits[i]:
                outputs[i] = self._search([sources[i]], beams, alpha, limits[i])[0]
        rows = [torch.tensor([self.config.decoder_start_token_id, *best]) for best, _ in outputs]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

    def _search(self, sources: list[list[int]], beams: int, alpha: float, limit: int) -> list[tuple[list[int], int]]:
        """The best hypothesis of each source, and how long the longest of its n best was."""
        gnmt = self.config.length_normalization == "gnmt"
        try:
            results = self.translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(source) for source in sources],
                beam_size=beams,
                num_hypotheses=beams if gnmt else 1,
                length_penalty=0.0 if gnmt else alpha,
                max_decoding_length=limit,
                min_decoding_length=0,  # an empty translation is one; CTranslate2 would force a token
                max_input_length=0,
                return_scores=True,
                return_end_token=True,
            )
        except RuntimeError as error:  # such as a text longer than the table of positions
            raise ValueError(f"CTranslate2: {error}") from error
        outputs = []
        for result in results:
            hypotheses, scores = result.hypotheses, result.scores
            if gnmt:
                scores = [s / gnmt_length_penalty(len(h), alpha) for s, h in zip(scores, hypotheses, strict=True)]
            best = max(range(len(scores)), key=scores.__getitem__)
            tokens: Any = self.tokenizer.convert_tokens_to_ids(hypotheses[best])
            outputs.append((tokens, max(map(len, hypotheses))))
        return outputs


def _onnx() -> Any:
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
        from transformers import exporters
    except ImportError as error:
        raise ImportError(
            'ONNX needs transformers 5.23 and the extra: pip install "hf-vanilla-transformer[export]".'
        ) from error
    return exporters


def export_onnx(folder: str, output_dir: str) -> None:
    """Writes the model saved in `folder` as ONNX graphs, with its tokenizer, into the new folder `output_dir`.

    Raises:
        ImportError: where ONNX or its runtime is missing.
        ValueError: for a folder that is in use.
    """
    from transformers import AutoTokenizer

    exporters = _onnx()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    with _new_folder(output_dir) as made, _quietly():
        model, tokenizer = load_model(folder).eval(), load(AutoTokenizer, folder)
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.embed_positions(0, _positions(model.config))  # tables that long
        exporter, config = OnnxExporter(), OnnxConfig(dynamic=True)
        sample: dict[str, Any] = {"input_ids": torch.tensor([[4, 5, 6, 2], [4, 5, 2, 0]])}
        sample["attention_mask"] = sample["input_ids"].ne(0).long()
        encoder = exporter.export(model.get_encoder(), sample, config)
        sample["decoder_input_ids"] = torch.tensor([[1, 4, 5], [1, 6, 7]])  # lengths of 1 would be taken for constants
        search = type(model.generation_config)(num_beams=1, return_dict_in_generate=True)  # transformers' own loop
        steps = exporter.export_for_generation(model, sample, config, generation_config=search)
        exporters.ExportedModel(
            {"encoder": encoder.components["model"], **steps.components},
            "onnx",
            config=model.config,
            generation_config=model.generation_config,
        ).save_pretrained(made)
        tokenizer.save_pretrained(made)
        text = _README.format(runtime="ONNX", backend="onnx", name=folder, details="", inside=_INSIDE_ONNX)
        (made / "README.md").write_text(text, encoding="utf-8")


@contextmanager
def _quietly() -> Iterator[None]:
    """Keeps back what torch and transformers tell their own developers while they trace a model."""
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class OnnxModel(VanillaTransformerForConditionalGeneration):
    """An ONNX export: transformers' own `generate`, with each step run by ONNX Runtime. It has no weights itself.

    Args:
        folder: what `export_onnx` wrote.
    """

    def __init__(self, folder: str):
        from transformers import AutoTokenizer

        exported = _onnx().ExportedModel.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            super().__init__(exported.config)
        self.generation_config, self.runners = exported.generation_config, exported.runners
        self.tokenizer = load(AutoTokenizer, folder)
        self.eval()

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")  # of the ids that go in and out

    def _is_plain(self, *search: Any) -> bool:
        return False  # the faster loops need the weights

    def _longest_output(self) -> int:
        return _positions(self.config)

    def generate(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **settings: Any
    ) -> Any:
        """Tokens (B, T) for the sources (B, S); settings as for every model of transformers."""
        self._check(input_ids.shape[1])
        padding: Any = self.config.pad_token_id
        mask = input_ids.ne(padding).long() if attention_mask is None else attention_mask
        states = self._run("encoder", input_ids=input_ids, attention_mask=mask)
        return super().generate(input_ids, attention_mask=mask, encoder_outputs=states, **settings)

    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        encoder_outputs: BaseModelOutput,
        past_key_values: Any,
        attention_mask: torch.Tensor,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """One step: `decoder_input_ids` (B, 1) to logits (B, 1, vocab_size), and keys and values for the next."""
        self._check(past_key_values.get_seq_length() + decoder_input_ids.shape[1])
        return self._run(
            "decode" if past_key_values.get_seq_length() else "prefill",
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
        )

    def _check(self, length: int) -> None:
        if length > _positions(self.config):
            raise ValueError(f"The export has {_positions(self.config)} positions, but the text needs {length}.")

    def _run(self, name: str, **inputs: Any) -> Any:
        runner = self.runners[name]
        return runner(**{key: value for key, value in inputs.items() if key in runner.metadata.kwargs})
