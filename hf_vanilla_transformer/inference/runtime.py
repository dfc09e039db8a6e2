"""`Runtime`, the interface that every export shares with a model in torch, and what a format of exports provides."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig


class Runtime(Protocol):
    """Whatever generates token ids: a model in torch, an ensemble, or an export.

    Attributes:
        config: the configuration of the model.
        generation_config: the decoding settings saved with it.
        device: the device of the input and output ids.
        returns_scores: whether `generate` can return n-best lists and scores.
    """

    config: VanillaTransformerConfig
    generation_config: GenerationConfig
    returns_scores: bool

    @property
    def device(self) -> torch.device: ...

    @property
    def generate(self) -> Callable[..., Any]:
        """Return the method that generates ids for `input_ids`, as `VanillaTransformerGenerationMixin.generate`."""

    def attention(self, inputs: Mapping[str, torch.Tensor], kind: str = "cross") -> torch.Tensor | None:
        """Return the attention weights for sources and their translations, or None if the runtime does not have them.

        Args:
            inputs: "input_ids" (B, S), "decoder_input_ids" (B, T) and masks.
            kind: "encoder", "decoder" or "cross".

        Returns:
            Weights in float32 on the CPU. *Shape:* (layers, B, heads, queries, keys).
        """


class ExportedModel(Runtime, Protocol):
    """A runtime that was loaded from the folder of an export, with the tokenizer saved there."""

    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True)
class Format:
    """A format of exports.

    Args:
        name: its name on the command line.
        title: the name of its runtime.
        files: patterns of the files that determine its translations, besides configuration and tokenizer.
        usage: how other programs use an export, for its README.
        check: raises an `ImportError` if the packages that write an export are not installed.
        recognises: returns whether a folder is such an export.
        write: takes a model, its tokenizer, a folder and a quantisation, which is one of `quantizations` or None;
            writes the graphs or weights into the folder, and what of the configuration they do not tell.
            `exports.export_model` adds the tokenizer and a README.
        load: loads an export.
        quantizations: number formats of the weights, the default last; none if there is no choice.
        uses_gpus: whether its runtime runs on a GPU if there is one.
    """

    name: str
    title: str
    files: tuple[str, ...]
    usage: str
    check: Callable[[], object]
    recognises: Callable[[Path], bool]
    write: Callable[[PreTrainedModel, PreTrainedTokenizerBase, Path, str | None], None]
    load: Callable[[str], ExportedModel]
    quantizations: tuple[str, ...] = ()
    uses_gpus: bool = False
