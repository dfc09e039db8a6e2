"""Export models to CTranslate2 (fast on CPUs and GPUs) and ONNX (runs on most platforms)."""

import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from ..files import CARD, import_extra, new_folder
from ..inference.ctranslate2_runtime import CTranslate2Model
from ..inference.exports import CONFIG_FOLDER, export_format, num_positions
from ..inference.onnx_runtime import OnnxModel, import_exporters
from ..model.layers_vanilla_transformer import sinusoids
from ..model.loading import load, load_model, loading_errors

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
_README = """# {runtime} export of a Transformer

Exported by hf-vanilla-transformer from {name}{details}. To run it:

    pip install "hf-vanilla-transformer[export]"
    vanilla-transformer translate THIS_FOLDER --backend {backend} < in.txt > out.txt

{usage}
"""
_CTRANSLATE2_USAGE = """`ctranslate2.Translator(THIS_FOLDER)` loads it directly. Its input must be tokenised with
`tokenizer.json` and end with `</s>`."""
_ONNX_USAGE = """Any build of ONNX Runtime can run the graphs. Run `encoder.onnx` once per sentence (tokenised with
`tokenizer.json`, ending with `</s>`), `prefill.onnx` for the first output token, which also returns the attention keys
and values, and `decode.onnx` for each further token, which takes and returns them. `export.json` lists all inputs and
outputs. In Python, `transformers.exporters` runs the graphs:

    from transformers.exporters import ExportedModel
    exported = ExportedModel.from_pretrained("THIS_FOLDER", trust_remote_code=True)  # for its config class
    exported.runners["encoder"](input_ids=..., attention_mask=...)"""


def _public_name(folder: str) -> str:
    """Return the name of a model without the path on this machine."""
    return Path(folder).resolve().name if Path(folder).exists() else folder


def _register_loader() -> None:
    """Register with CTranslate2's converter how to read the weights and settings of this model class."""
    from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader, register_loader
    from ctranslate2.specs.transformer_spec import TransformerSpec

    @register_loader("VanillaTransformerConfig")
    class VanillaTransformerLoader(BartLoader):
        architecture_name = "AutoModelForSeq2SeqLM"

        def get_model_spec(self, model):
            config = model.config
            if {config.d_k, config.d_v} != {config.d_model / config.num_heads}:
                raise ValueError(
                    "CTranslate2 supports only heads that are d_model / num_heads wide, but this model has d_k "
                    f"{config.d_k} and d_v {config.d_v}."
                )
            if config.activation_function not in _SUPPORTED_ACTIVATIONS:
                raise ValueError(f"CTranslate2 does not support the activation {config.activation_function!r}.")
            self.positions = num_positions(config)
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
    """Export the model saved in `folder`, with its tokenizer, for CTranslate2 into the new folder `output_dir`.

    Args:
        quantization: one of `QUANTIZATIONS`, the type in which CTranslate2 stores the weights.

    Raises:
        ImportError: if CTranslate2 is not installed.
        OSError: if the model cannot be loaded.
        ValueError: if CTranslate2 does not support the model, the quantisation is unknown, or `output_dir` already
            exists and is not an empty folder.
    """
    import_extra("ctranslate2", "export")
    from ctranslate2.converters import TransformersConverter

    if quantization not in QUANTIZATIONS:
        raise ValueError(f"Unknown quantisation {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}.")
    _register_loader()
    with new_folder(output_dir) as target:
        model, tokenizer = load_model(folder), load(AutoTokenizer, folder)  # checks that the files are complete
        config, generation_config = model.config, model.generation_config
        del model  # to save memory: the converter loads the model itself
        TransformersConverter(str(folder), trust_remote_code=False).convert(str(target), quantization=quantization)
        tokenizer.save_pretrained(target)
        config.save_pretrained(target / CONFIG_FOLDER)
        generation_config.save_pretrained(target / CONFIG_FOLDER)
        readme = _README.format(
            runtime="CTranslate2",
            backend="ctranslate2",
            name=_public_name(folder),
            details=f", quantisation {quantization}",
            usage=_CTRANSLATE2_USAGE,
        )
        (target / CARD).write_text(readme, encoding="utf-8")


def load_export(folder: str, backend: str) -> "CTranslate2Model | OnnxModel":
    """Load an export for `backend`; export a saved model to a temporary folder first.

    Args:
        folder: an export, or the folder or Hub name of a saved model.
        backend: "ctranslate2" or "onnx".

    Raises:
        ImportError: if the runtime is not installed.
        OSError: if the export or the model cannot be loaded.
        ValueError: if the export is for the other backend, or the backend does not support the model.
    """
    export, load_backend = {
        "ctranslate2": (export_ctranslate2, CTranslate2Model),
        "onnx": (export_onnx, OnnxModel),
    }[backend]
    found = export_format(folder)
    if found == backend:
        with loading_errors(folder):
            return load_backend(folder)
    if found:
        raise ValueError(f"{folder} is an export for {found}, not for {backend}; use --backend {found}.")
    with tempfile.TemporaryDirectory() as temporary:
        export(folder, str(Path(temporary, "export")))
        return load_backend(str(Path(temporary, "export")))


def export_onnx(folder: str, output_dir: str) -> None:
    """Export the model saved in `folder`, with its tokenizer, as ONNX graphs into the new folder `output_dir`.

    Raises:
        ImportError: if ONNX Runtime or onnxscript is not installed, or transformers is too old.
        OSError: if the model cannot be loaded.
        ValueError: if `output_dir` already exists and is not an empty folder.
    """
    exporters = import_exporters()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    with new_folder(output_dir) as target, _silence_tracing():
        model, tokenizer = load_model(folder).eval(), load(AutoTokenizer, folder)
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.embed_positions(0, num_positions(model.config))  # extends a table of sinusoids to this length
        exporter, config = OnnxExporter(), OnnxConfig(dynamic=True)
        sample: dict[str, Any] = {"input_ids": torch.tensor([[4, 5, 6, 2], [4, 5, 2, 0]])}
        sample["attention_mask"] = sample["input_ids"].ne(0).long()
        encoder = exporter.export(model.get_encoder(), sample, config)
        # tracing would turn a length of 1 into a constant
        sample["decoder_input_ids"] = torch.tensor([[1, 4, 5], [1, 6, 7]])
        # return_dict_in_generate selects the decoding loop of transformers instead of the fast search
        search = type(model.generation_config)(num_beams=1, return_dict_in_generate=True)
        steps = exporter.export_for_generation(model, sample, config, generation_config=search)
        exporters.ExportedModel(
            {"encoder": encoder.components["model"], **steps.components},
            "onnx",
            config=model.config,
            generation_config=model.generation_config,
        ).save_pretrained(target)
        tokenizer.save_pretrained(target)
        readme = _README.format(
            runtime="ONNX", backend="onnx", name=_public_name(folder), details="", usage=_ONNX_USAGE
        )
        (target / CARD).write_text(readme, encoding="utf-8")


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
