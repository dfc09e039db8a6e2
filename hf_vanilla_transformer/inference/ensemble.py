"""Translate with an ensemble: every decoding step averages the probabilities of several models."""

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..errors import UserError
from ..model.cache_vanilla_transformer import CACHE, accept_past_key_values
from ..model.generation_vanilla_transformer import HEAD_MASKS, VanillaTransformerGenerationMixin
from ..model.modeling_vanilla_transformer import VanillaTransformerPreTrainedModel


class _EnsembleEncoder(nn.Module):
    """Run the encoder of every model on the same source and concatenate the states: (B, S, sum of all d_model)."""

    main_input_name = "input_ids"

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    # generate() also passes flags such as output_attentions, of which this encoder returns nothing
    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_: object):
        states = [encoder(input_ids, attention_mask).last_hidden_state for encoder in self.encoders]
        return BaseModelOutput(torch.cat(states, -1))


def _cache_slice(cache: EncoderDecoderCache, start: int, stop: int) -> EncoderDecoderCache:
    """Return the layers `start` to `stop` - 1 of a cache, which belong to one of the models; nothing is copied."""
    slices = []
    # The layers are objects that the models update in place, so the whole cache sees every new key and value
    for full in (cache.self_attention_cache, cache.cross_attention_cache):
        part = DynamicCache()
        part.layers = full.layers[start:stop]
        slices.append(part)
    return EncoderDecoderCache(*slices)


class Ensemble(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """An ensemble of models with the same vocabulary, which predicts the mean of their probabilities.

    The models may differ in depth, width and number format. The generation config is copied from the first model.
    `generate()` runs the decoding loops of transformers. An ensemble cannot be trained or saved.

    Args:
        models: at least one model; all must have the same vocabulary.

    Raises:
        ValueError: if the vocabulary sizes, special tokens or devices of the models differ.
    """

    def __init__(self, models: Sequence[VanillaTransformerPreTrainedModel]):
        config = copy.deepcopy(models[0].config)
        # of one model alone; scores of averaged probabilities are others
        config.doubtful_score = None
        for name in ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            values = [getattr(model.config, name) for model in models]
            if any(value != values[0] for value in values):
                raise UserError(f"The models of an ensemble must share one vocabulary: {name} is {values}.")
        devices = [str(model.device) for model in models]
        if len(set(devices)) > 1:
            raise UserError(f"The models of an ensemble must be on one device, but are on {', '.join(devices)}.")
        self._depths = [model.config.num_decoder_layers for model in models]
        # generate() allocates a cache with this number of layers, which `forward` distributes among the models
        config.num_decoder_layers = sum(self._depths)
        # a source must suit every model
        config.max_position_embeddings = min(model.config.max_position_embeddings for model in models)
        # The constructor derives a generation config from `config`, which that of the first model replaces
        super().__init__(config)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        self.models = nn.ModuleList(models)
        # Built once, because generate() asks for the encoder at each call
        self._encoder = _EnsembleEncoder([model.get_encoder() for model in models])
        self._widths = [model.config.d_model for model in models]
        self.eval()

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self._encoder

    def attention(self, inputs: Mapping[str, torch.Tensor], kind: str = "cross") -> torch.Tensor | None:
        """Return the attention weights of the first model, as its own method."""
        return self.models[0].attention(inputs, kind)  # type: ignore[operator]

    # With learned positions, a model has no state for tokens behind the end of its table
    def _max_output_tokens(self) -> int:
        return min(model._max_output_tokens() for model in self.models)  # type: ignore[operator]

    @accept_past_key_values
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: EncoderDecoderCache | None = None,
        **others: object,
    ) -> Seq2SeqLMOutput:
        """Return the logarithm of the mean probabilities as `logits` (B, T, vocab_size).

        Raises:
            ValueError: if there is a head mask, because the models differ in layers and heads.
        """
        if head_masks := [name for name in HEAD_MASKS if others.get(name) is not None]:
            raise UserError(f"An ensemble takes no {' or '.join(head_masks)}: mask the heads of its models instead.")
        if encoder_outputs is None:
            encoder_outputs = self._encoder(input_ids, attention_mask)

        log_probs = []
        start = 0  # the first layer of the model in the shared cache
        # Only by width: generate() has repeated the rows of the whole tensor for the beams
        states = encoder_outputs[0].split(self._widths, -1)
        for model, state, depth in zip(self.models, states, self._depths, strict=True):
            part = None if cache is None else _cache_slice(cache, start, start + depth)
            outputs = model(
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                # Concatenated with those of a model in float32, the states of one in bfloat16 were converted
                encoder_outputs=BaseModelOutput(state.to(model.dtype)),
                cache=part,
                use_cache=part is not None,
            )
            # In float32, as the searches of transformers compute log-probabilities
            log_probs.append(outputs.logits.log_softmax(-1, dtype=torch.float32))
            start += depth

        # log((p_1 + ... + p_M) / M) from the logarithms, (M, B, T, vocab_size) to (B, T, vocab_size). As logits it
        # changes nothing for generate(): the softmax of log-probabilities is the probabilities
        logits = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))
        return Seq2SeqLMOutput(**{"logits": logits, CACHE: cache})  # type: ignore[arg-type]
