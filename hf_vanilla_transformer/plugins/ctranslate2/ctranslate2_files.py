"""Write the files of a CTranslate2 model, and compare those of anyone with what they should contain.

CTranslate2 trusts its files: with a vocabulary longer than the embeddings, or a weight of another shape, it would read
past the end of an array.
"""

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...errors import UserError
from ...files import inside, read_json
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.layers_vanilla_transformer import sinusoids
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...model.text_rules_vanilla_transformer import num_positions

if TYPE_CHECKING:
    from ctranslate2.specs.transformer_spec import TransformerSpec

_WEIGHTS = "model.bin"
_CONFIG = "config.json"
_VOCABULARY = "shared_vocabulary.json"
_VERSION = 6  # of the format of model.bin
_ITEM_BYTES = (4, 1, 2, 4, 2, 2)  # of float32, int8, int16, int32, float16 and bfloat16, in the order of their numbers


class _Variable(NamedTuple):
    """A variable in model.bin, and its content if it is a single number."""

    shape: tuple[int, ...]
    number: bytes = b""


def vocabulary(tokenizer: PreTrainedTokenizerBase, size: int) -> list[str]:
    """Return the token of each id of a model; ids that the tokenizer does not have get a name of their own."""
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab().items()}
    return [tokens.get(token_id, f"<no token {token_id}>") for token_id in range(size)]


def convert(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, start_token_id: int) -> "TransformerSpec":
    """Return the variables, the vocabulary and the configuration that CTranslate2 needs, whose weights are shared.

    Raises:
        ValueError: if CTranslate2 does not support the model.
    """
    from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader
    from ctranslate2.specs.transformer_spec import TransformerSpec

    config: Any = model.config
    if {config.d_k, config.d_v} != {config.d_model / config.num_heads}:
        raise UserError(
            "CTranslate2 supports only heads that are d_model / num_heads wide, but this model has d_k "
            f"{config.d_k} and d_v {config.d_v}."
        )
    if config.activation_function not in _SUPPORTED_ACTIVATIONS:
        raise UserError(f"CTranslate2 does not support the activation {config.activation_function!r}.")

    # BART has the same layers under the same names; only positions, and norms around embeddings, differ
    class VanillaTransformerLoader(BartLoader):
        def get_model_spec(self, model):
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
                # as a table, whatever the order of sines and cosines in CTranslate2 itself
                spec.encodings = sinusoids(num_positions(config, is_export=True), module.table.shape[1]).float()
            else:
                spec.encodings = module.weight

        def get_vocabulary(self, model, tokenizer):
            return vocabulary(tokenizer, config.vocab_size)

        def set_config(self, settings, model, tokenizer):
            super().set_config(settings, model, tokenizer)
            settings.decoder_start_token = self.get_vocabulary(model, tokenizer)[start_token_id]
            # CTranslate2 expects a name even of a start token that does not exist
            settings.bos_token = settings.bos_token or settings.eos_token
            settings.layer_norm_epsilon = config.layer_norm_eps

    # as CTranslate2's converter does with a model that it has loaded
    with torch.no_grad():
        spec = VanillaTransformerLoader()(model, tokenizer)
    spec.validate()
    return spec


def start_token(settings: GenerationConfig, config: PreTrainedConfig) -> int:
    """Return the id of the token with which every translation starts.

    Raises:
        ValueError: if the model has none.
    """
    for start in (settings.decoder_start_token_id, getattr(config, "decoder_start_token_id", None)):
        if start is not None:
            return start
    raise UserError("CTranslate2 needs a decoder_start_token_id, but the model has none.")


def check_files(
    folder: Path, config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase, start_token_id: int
) -> None:
    """Check that the files of an export are those of a model with this configuration, whatever its weights.

    Raises:
        OSError: if one cannot be read.
        ValueError: if one is not.
    """
    tokens = read_json(inside(folder, _VOCABULARY))
    # its length first: a list for any size that a configuration names would take all memory
    has_size = isinstance(tokens, list) and len(tokens) == config.vocab_size
    if not has_size or tokens != vocabulary(tokenizer, config.vocab_size):
        raise UserError(f"its {_VOCABULARY} does not list the {config.vocab_size:,} tokens of the model")
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(config)
        spec = convert(model, tokenizer, start_token_id)
    expected_config = spec.config.to_dict()
    actual_config = read_json(inside(folder, _CONFIG))
    if actual_config != expected_config:
        raise UserError(f"its {_CONFIG} is not that of the model: expected {expected_config}")
    _check_variables(inside(folder, _WEIGHTS), spec)


def _check_variables(file: Path, spec: "TransformerSpec") -> None:
    """Check that the variables in a file have the names and shapes of those of a model.

    Raises:
        ValueError: if one has not.
    """
    with file.open("rb") as stream:
        variables = _read_variables(stream, f"{spec.name} {spec.revision}")
    expected = {
        name: _Variable(tuple(value.shape), value.to_bytes() if value.is_scalar() else b"")
        for name, value in spec.variables().items()
    }
    # numbers with which the rows of a quantised weight are multiplied: one for each, or the same for all
    scales = {name.removesuffix("_scale"): name for name in variables.keys() - expected.keys()}
    for name, scale in scales.items():
        shape = variables[scale].shape
        if name in expected and shape in ((), expected[name].shape[:1]):
            expected[scale] = variables[scale]
    for name in sorted(variables.keys() | expected.keys()):
        if variables.get(name) != expected.get(name):
            raise UserError(f"in its {_WEIGHTS}, {name[:200]!r} is missing, or is not that of the configuration")


def _read_variables(stream: BinaryIO, kind: str) -> dict[str, _Variable]:
    """Return the variables in a model.bin, without reading their content.

    Args:
        kind: what the file must contain, and in which revision.

    Raises:
        ValueError: if it is damaged, or contains something else.
    """

    def read(size: int) -> bytes:
        content = stream.read(size)
        if len(content) < size:
            raise UserError(f"its {_WEIGHTS} is truncated")
        return content

    def number(code: str) -> int:
        return struct.unpack(f"<{code}", read(struct.calcsize(code)))[0]

    def text() -> str:
        return read(number("H")).rstrip(b"\0").decode("utf-8", "replace")

    version = number("I")
    actual = f"{text()} {number('I')}"
    if (version, actual) != (_VERSION, kind):
        raise UserError(f"its {_WEIGHTS} contains {actual[:200]!r} in version {version}, not {kind} in {_VERSION}")
    variables = {}
    for _ in range(number("I")):
        name = text()
        shape = tuple(number("I") for _ in range(number("B")))
        item = number("B")
        size = number("I")
        if item >= len(_ITEM_BYTES) or size != math.prod(shape) * _ITEM_BYTES[item]:
            raise UserError(f"its {_WEIGHTS} is damaged: {name[:200]!r} has {size:,} bytes")
        content = b"" if shape else read(size)
        variables[name] = _Variable(shape, content)
        if shape:
            stream.seek(size, 1)
    for _ in range(number("I")):
        alias = text()
        variables[alias] = variables.get(text(), _Variable(()))
    return variables
