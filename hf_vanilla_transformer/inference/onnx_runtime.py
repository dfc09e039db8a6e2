"""Run an ONNX export as a model with a `generate`."""

from importlib import import_module
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..files import import_extra
from ..model.loading import load
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .exports import num_positions


def import_exporters() -> Any:
    """Return `transformers.exporters`, which writes and runs ONNX graphs.

    Raises:
        ImportError: if it or ONNX Runtime is missing.
    """
    for module in ("onnxruntime", "onnxscript"):
        import_extra(module, "export")
    try:
        return import_module("transformers.exporters")
    except ImportError as error:
        raise ImportError(f"ONNX needs transformers 5.23 or newer, not {transformers.__version__}.") from error


class OnnxModel(VanillaTransformerForConditionalGeneration):
    """An ONNX export: transformers' own `generate`, with each step run by ONNX Runtime; it has no weights of its own.

    Args:
        folder: what `export_onnx` wrote.
    """

    def __init__(self, folder: str):
        exported = import_exporters().ExportedModel.from_pretrained(folder, trust_remote_code=False)
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
        return num_positions(self.config)

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
        if length > num_positions(self.config):
            raise ValueError(f"The export has {num_positions(self.config)} positions, but the text needs {length}.")

    def _run(self, name: str, **inputs: Any) -> Any:
        runner = self.runners[name]
        return runner(**{key: value for key, value in inputs.items() if key in runner.metadata.kwargs})
