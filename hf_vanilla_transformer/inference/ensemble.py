"""Several models that translate together: at every step the mean of their probabilities decides."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel


class _Encoders(nn.Module):
    """Every member's encoder on the same source, their states side by side: (B, S, sum of the widths)."""

    main_input_name = "input_ids"

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: Any):
        states = [encoder(input_ids, attention_mask).last_hidden_state for encoder in self.encoders]
        return BaseModelOutput(torch.cat(states, -1))


def _layers(cache: EncoderDecoderCache, first: int, last: int) -> EncoderDecoderCache:
    """Some layers of a cache, not copied: what one member keeps in the ensemble's."""
    parts = []
    for whole in (cache.self_attention_cache, cache.cross_attention_cache):
        part = DynamicCache()
        part.layers = whole.layers[first:last]
        parts.append(part)
    return EncoderDecoderCache(*parts)


class Ensemble(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """`generate()` and `forward()` by the mean of the models' probabilities, for models with one vocabulary.

    The models may differ in depth and width; decoding settings are the first one's. It runs transformers' own
    generation loops, and is neither trained nor saved.

    Raises:
        ValueError: if the models' vocabularies or special tokens differ.
    """

    def __init__(self, models: Sequence[VanillaTransformerPreTrainedModel]):
        first = models[0].config
        for model in models[1:]:
            for name in ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
                ours, theirs = getattr(first, name), getattr(model.config, name)
                if ours != theirs:
                    raise ValueError(f"Models of an ensemble need one vocabulary: {name} is {ours} and {theirs}.")
        config = copy.deepcopy(first)
        self._depths = [model.config.num_decoder_layers for model in models]
        config.num_decoder_layers = sum(self._depths)  # transformers sizes the cache by it
        super().__init__(config)
        self.models = nn.ModuleList(models)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self._encoders = _Encoders([model.get_encoder() for model in models])
        self._widths = [model.config.d_model for model in models]
        self.eval()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self._encoders

    def _is_plain(self, *search: Any) -> bool:
        return False  # the faster loops know one model

    def _longest_output(self) -> int:
        return min(model._longest_output() for model in self.models)  # type: ignore[operator]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: EncoderDecoderCache | None = None,
        **_: Any,
    ) -> Seq2SeqLMOutput:
        """`logits` (B, T, vocab_size): the logarithm of the mean probability."""
        if encoder_outputs is None:
            encoder_outputs = self._encoders(input_ids, attention_mask)
        log_probs, first = [], 0
        states = encoder_outputs[0].split(self._widths, -1)
        for model, state, depth in zip(self.models, states, self._depths, strict=True):
            part = None if past_key_values is None else _layers(past_key_values, first, first + depth)
            outputs = model(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                encoder_outputs=BaseModelOutput(state),
                past_key_values=part,
                use_cache=part is not None,
            )
            log_probs.append(outputs.logits.log_softmax(-1))
            first += depth
        logits = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
        return Seq2SeqLMOutput(logits=logits, past_key_values=past_key_values)
