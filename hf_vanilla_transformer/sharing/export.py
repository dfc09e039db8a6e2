"""Export a model for CTranslate2, which decodes fast on CPUs and GPUs, and for ONNX, which runs nearly anywhere."""

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
from ..model.loading import load, load_model, loading

QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
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


def _public_name(folder: str) -> str:
    """Return the name of a model, without the folders of this machine."""
    return Path(folder).resolve().name if Path(folder).exists() else folder


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
    """Writes the model saved in `folder` for CTranslate2, with its tokenizer, into the new folder `output_dir`.

    Raises:
        ImportError: where CTranslate2 is missing.
        ValueError: for a model that CTranslate2 cannot run, an unknown quantisation or a folder that is in use.
    """
    import_extra("ctranslate2", "export")
    from ctranslate2.converters import TransformersConverter

    if quantization not in QUANTIZATIONS:
        raise ValueError(f"There is no quantisation {quantization!r}; choose one of {', '.join(QUANTIZATIONS)}.")
    _register_loader()
    with new_folder(output_dir) as made:
        model, tokenizer = load_model(folder), load(AutoTokenizer, folder)  # whole, or a clear error
        config, generation_config = model.config, model.generation_config
        del model  # the converter loads it again
        TransformersConverter(str(folder), trust_remote_code=False).convert(str(made), quantization=quantization)
        tokenizer.save_pretrained(made)
        config.save_pretrained(made / CONFIG_FOLDER)
        generation_config.save_pretrained(made / CONFIG_FOLDER)
        about = {"runtime": "CTranslate2", "backend": "ctranslate2", "inside": _INSIDE_CTRANSLATE2}
        text = _README.format(name=_public_name(folder), details=f", quantisation {quantization}", **about)
        (made / CARD).write_text(text, encoding="utf-8")


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


def export_onnx(folder: str, output_dir: str) -> None:
    """Writes the model saved in `folder` as ONNX graphs, with its tokenizer, into the new folder `output_dir`.

    Raises:
        ImportError: where ONNX or its runtime is missing.
        ValueError: for a folder that is in use.
    """
    exporters = import_exporters()
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    with new_folder(output_dir) as made, _quietly():
        model, tokenizer = load_model(folder).eval(), load(AutoTokenizer, folder)
        for stack in (model.get_encoder(), model.get_decoder()):
            stack.embed_positions(0, num_positions(model.config))  # tables that long
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
        text = _README.format(
            runtime="ONNX", backend="onnx", name=_public_name(folder), details="", inside=_INSIDE_ONNX
        )
        (made / CARD).write_text(text, encoding="utf-8")


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
