"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, arXiv:1706.03762), as published.

Section numbers refer to the paper. Shapes use B sentences, S source tokens and T target tokens.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import length_hint
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
)
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, can_return_tuple, logging
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .cache_vanilla_transformer import CACHE, accept_past_key_values
from .configuration_vanilla_transformer import IGNORED_LABEL, VanillaTransformerConfig
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin, note_methods
from .graphs_vanilla_transformer import forget_graphs
from .layers_vanilla_transformer import (
    Dropout,
    LearnedPositions,
    SinusoidalPositions,
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
    VanillaTransformerEncoderLayer,
    cast_once,
    mask_config,
    next_positions,
    padding_mask,
    shift_right,
    split_head_mask,
)
from .loss_vanilla_transformer import losses_and_probabilities, projected_cross_entropy

if TYPE_CHECKING:  # transformers copies the files imported here into saved models; this makes it copy the pipeline
    from .pipeline_vanilla_transformer import TranslationPipeline  # noqa: F401


@dataclass
class TrainingOutput(Seq2SeqLMOutput):
    """The output of the model if `smoothing` is given: both losses, of which that without it has no gradient."""

    cross_entropy: torch.FloatTensor | None = None


@contextmanager
def only_long_bars() -> Iterator[None]:
    """Draw transformers' bars only in a terminal, after the first second, and for more than one file or tensor."""

    def draw(factory: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
        single = length_hint(args[0] if args else ()) == 1
        kwargs = {"delay": 1, "disable": single or None, **kwargs}
        return before(factory, args, kwargs) if before else factory(*args, **kwargs)

    before = logging.set_tqdm_hook(draw)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Base class: initial weights, resizing of embeddings, uploads, and the features that transformers supports."""

    config: VanillaTransformerConfig
    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaTransformerEncoderLayer", "VanillaTransformerDecoderLayer"]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    uploader: Callable[..., str] | None = None  # method behind `push_to_hub`, set by the installed package

    def tie_weights(self, missing_keys: set[str] | None = None, recompute_mapping: bool = True):
        """Tie as transformers does, and let both stacks call one module, so that hooks on it see every use.

        `__init__` does not do so: a file may have the matrix under any of its names, or different ones.
        """
        super().tie_weights(missing_keys, recompute_mapping)
        # not always a model of this package: torch.compile wraps it
        base: Any = self.base_model
        shared = getattr(base, "shared", None)
        if shared is None:  # untied, or only one of the stacks
            return
        # transformers leaves weights untied while loading, and if a file has different ones
        if all(stack.embed_tokens.weight is shared.weight for stack in (base.encoder, base.decoder)):
            base.shared = shared
            if missing_keys is not None:
                # the matrix has only its own name from now on
                prefix = "" if base is self else f"{self.base_model_prefix}."
                missing_keys -= {f"{prefix}{target}" for target in VanillaTransformerModel._tied_weights_keys}

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize as transformers does, and also the decoder's own matrix if the embeddings are not tied."""
        resized = super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        decoder = getattr(self.base_model, "decoder", None)
        if decoder is not None and not self.config.tie_word_embeddings:
            old = decoder.embed_tokens
            new = self._get_resized_embeddings(old, resized.num_embeddings, mean_resizing=mean_resizing)
            decoder.embed_tokens = new.requires_grad_(old.weight.requires_grad)
        return resized

    def push_to_hub(self, repo_id: str, **kwargs) -> str:  # type: ignore[override]
        """Upload the model as transformers does, with this package's model card if the package is installed."""
        if self.uploader is None:
            return super().push_to_hub(repo_id, **kwargs)  # type: ignore[arg-type]
        return self.uploader(repo_id, **kwargs)

    @classmethod
    @only_long_bars()
    def from_pretrained(cls, *args, **kwargs):
        """Load as transformers does, without a progress bar for what takes less than a second."""
        return super().from_pretrained(*args, **kwargs)

    @only_long_bars()
    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, also with greedy search as the default.

        transformers refuses to save a length penalty with one beam, for which it has no effect.
        """
        if not self.config.tie_word_embeddings and hasattr(self.base_model, "shared"):
            kwargs["state_dict"] = self._untied_state(kwargs.get("state_dict") or self.state_dict())
        config = getattr(self, "generation_config", None)
        if config is None or (config.num_beams or 1) > 1:
            return super().save_pretrained(*args, **kwargs)
        length_penalty = config.length_penalty
        config.length_penalty = None
        try:
            return super().save_pretrained(*args, **kwargs)
        finally:
            config.length_penalty = length_penalty

    @staticmethod
    def _untied_state(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Name the shared embedding as an untied model does: a matrix of each stack.

        PEFT unties a model that has trained its embedding or its projection (`modules_to_save`) by its configuration.
        """
        untied = dict(state_dict)
        for name in [name for name in state_dict if name.endswith("shared.weight")]:
            matrix = untied.pop(name)
            for stack in ("encoder", "decoder"):
                untied.setdefault(name.replace("shared", f"{stack}.embed_tokens"), matrix.clone())
        return untied

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        """Initialise a module from N(0, initializer_range^2) if set, as transformers does, else as tensor2tensor does.

        The paper does not describe its initialisation.
        """
        is_given = self.config.initializer_range is not None
        if isinstance(module, SinusoidalPositions):
            module.fill()
        elif isinstance(module, nn.Linear) and not is_given:
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding) and not is_given:
            # so that the embeddings, times sqrt(d_model), have unit variance (section 3.4)
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
        else:
            super()._init_weights(module)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """Base of encoder and decoder: scaled embeddings (section 3.4), positions (section 3.5) and layers."""

    def __init__(self, config: VanillaTransformerConfig, layers: list[nn.Module]):
        super().__init__(config)
        # its row of the padding token is an ordinary one: padded positions are masked
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        self.embed_scale = math.sqrt(config.d_model)
        learned = config.position_embedding == "learned"
        self.embed_positions = LearnedPositions(config) if learned else SinusoidalPositions(config)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(layers)
        self.gradient_checkpointing = False
        self.post_init()

    def call_embedding(self, embedding: nn.Module) -> None:
        """Look tokens up in a module of the whole model, which is not registered here again.

        Under several names, it would keep the weights of `torch.func.functional_call` (torch issue 164759), and FSDP2
        would refuse it.
        """
        self._modules.pop("embed_tokens", None)
        vars(self)["embed_tokens"] = embedding

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        if "embed_tokens" not in self._modules:
            # a dictionary of another class may name the shared matrix here as well
            state_dict.pop(f"{prefix}embed_tokens.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Register the shared embedding while this stack is used without the whole model."""
        is_shared = "embed_tokens" not in self._modules
        if is_shared:
            self._modules["embed_tokens"] = self.embed_tokens
        try:
            yield
        finally:
            if is_shared:
                del self._modules["embed_tokens"]

    def _apply(self, *args, **kwargs):
        with self._alone():
            return super()._apply(*args, **kwargs)

    def named_parameters(self, *args, **kwargs) -> Iterator[tuple[str, nn.Parameter]]:
        with self._alone():
            # now, not when they are asked for
            return iter([*super().named_parameters(*args, **kwargs)])

    def state_dict(self, *args, **kwargs):
        # that of the whole model passes its dictionary
        with nullcontext() if "destination" in kwargs else self._alone():
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args, **kwargs):
        with self._alone():
            return super().load_state_dict(*args, **kwargs)

    def token_embeddings(self, input_ids: torch.Tensor | None, inputs_embeds: torch.Tensor | None) -> torch.Tensor:
        """Return the embeddings times sqrt(d_model); `inputs_embeds` are unscaled rows of the embedding matrix."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Pass exactly one of [decoder_]input_ids and [decoder_]inputs_embeds.")
        if inputs_embeds is None:
            # (B, T) -> (B, T, d_model)
            inputs_embeds = self.embed_tokens(input_ids)
        return inputs_embeds * self.embed_scale

    def add_positions(self, embeddings: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Add the positions after those in `cache`, and apply dropout. *Shape:* (B, T, d_model) to (B, T, d_model)."""
        positions = next_positions(self.embed_positions, cache, embeddings.shape[1])
        # (B, T, d_model) + (T, d_model); dropout "to the sums of the embeddings and the positional encodings" (5.4)
        return self.dropout(embeddings + positions.to(embeddings))


class VanillaTransformerEncoder(VanillaTransformerStack):
    """The encoder (Figure 1, left): N layers of self-attention and feed-forward."""

    _can_record_outputs = {"hidden_states": VanillaTransformerEncoderLayer, "attentions": VanillaTransformerAttention}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, [VanillaTransformerEncoderLayer(config, i) for i in range(config.num_encoder_layers)])

    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        head_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutput:
        """Encode `input_ids` (B, S) or `inputs_embeds` (B, S, d_model); `attention_mask` (B, S) is 0 at padding.

        `head_mask`, (layers, h) or (h,), multiplies the outputs of the heads.
        """
        head_masks = split_head_mask(head_mask, "head_mask", len(self.layers), self.config.num_heads)
        embeddings = self.token_embeddings(input_ids, inputs_embeds)
        # one mask for all layers, because building it may be slow
        mask = padding_mask(self.config, embeddings, attention_mask)
        hidden_states = self.add_positions(embeddings)
        for layer, layer_head_mask in zip(self.layers, head_masks, strict=True):
            hidden_states = layer(hidden_states, mask, layer_head_mask, **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class VanillaTransformerDecoder(VanillaTransformerStack):
    """The decoder (Figure 1, right): N layers of causal self-attention, attention to the source, and feed-forward."""

    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config, [VanillaTransformerDecoderLayer(config, i) for i in range(config.num_decoder_layers)])

    @accept_past_key_values
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        head_mask: torch.Tensor | None = None,
        cross_attn_head_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `input_ids` (B, T) after those in `cache`, attending to `encoder_hidden_states` (B, S, d_model).

        The head masks, (layers, h) or (h,), multiply the outputs of the heads in self- and in cross-attention.
        """
        size = (len(self.layers), self.config.num_heads)
        head_masks = split_head_mask(head_mask, "decoder_head_mask", *size)
        cross_head_masks = split_head_mask(cross_attn_head_mask, "cross_attn_head_mask", *size)
        embeddings = self.token_embeddings(input_ids, inputs_embeds)
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        causal_mask = create_causal_mask(
            config=mask_config(self.config),
            inputs_embeds=embeddings,
            attention_mask=attention_mask,
            **{CACHE: getattr(cache, "self_attention_cache", cache)},
        )
        cross_mask = padding_mask(self.config, embeddings, encoder_attention_mask, encoder_hidden_states)
        hidden_states = self.add_positions(embeddings, cache)
        if encoder_hidden_states is not None:
            encoder_hidden_states = cast_once(encoder_hidden_states)
        for layer, *layer_head_masks in zip(self.layers, head_masks, cross_head_masks, strict=True):
            # tensors are passed by position, because gradient checkpointing only tracks positional arguments
            hidden_states = layer(
                hidden_states,
                causal_mask,
                encoder_hidden_states,
                cross_mask,
                *layer_head_masks,
                **{CACHE: cache},
                **kwargs,
            )
        # no final layer norm: the last step of a post-norm layer is its own
        fields: dict = {"last_hidden_state": hidden_states, CACHE: cache}
        return BaseModelOutputWithPastAndCrossAttentions(**fields)


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder with a shared embedding matrix, without the output projection.

    Untied, encoder and decoder have matrices of their own, and the methods for input embeddings use the encoder's.
    """

    _auto_class = "AutoModel"
    # while the model is built and loaded; later, both stacks call the shared module
    _tied_weights_keys: dict[str, str] = {
        f"{stack}.embed_tokens.weight": "shared.weight" for stack in ("encoder", "decoder")
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.tie_word_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    def __setattr__(self, name: str, value: Any):
        super().__setattr__(name, value)
        # PEFT, for example, replaces modules by name
        if name == "shared" and "decoder" in self._modules:
            self.encoder.call_embedding(value)
            self.decoder.call_embedding(value)
            self._tied_weights_keys = {}

    def get_input_embeddings(self) -> nn.Embedding:
        # if tied, the decoder calls the same module
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding):  # type: ignore[override]
        if self.config.tie_word_embeddings:
            self.shared = value
        else:
            self.encoder.embed_tokens = value

    @accept_past_key_values
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        head_mask: torch.Tensor | None = None,
        decoder_head_mask: torch.Tensor | None = None,
        cross_attn_head_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqModelOutput:
        """Return the decoder's `last_hidden_state` (B, T, d_model) for source (B, S) and target (B, T) tokens.

        Args:
            input_ids: (B, S) source tokens; or `inputs_embeds` (B, S, d_model), rows of the embedding matrix.
            attention_mask: (B, S), 0 where the source is padding.
            decoder_input_ids: (B, T) target tokens, beginning with the start token; or `decoder_inputs_embeds`.
            decoder_attention_mask: (B, T + cached length), 0 at padding; the causal mask is always applied.
            encoder_outputs: earlier output of the encoder for this source; then no source tokens are needed.
            cache: `EncoderDecoderCache` of the previous step; then pass only the new target tokens. It may also be
                called `past_key_values`, its name in transformers before 5.24.
            head_mask, decoder_head_mask, cross_attn_head_mask: (layers, h), or (h,) for all layers alike: factors for
                the outputs of the heads in the encoder's, the decoder's and the cross-attention; 0 removes a head.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids, attention_mask, inputs_embeds=inputs_embeds, head_mask=head_mask, **kwargs
            )
        elif not isinstance(encoder_outputs, BaseModelOutput):
            # what the encoder returns with return_dict=False: last hidden state, all hidden states, attentions
            encoder_outputs = BaseModelOutput(*encoder_outputs[:3])
        decoder_outputs = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            head_mask=decoder_head_mask,
            cross_attn_head_mask=cross_attn_head_mask,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            **{CACHE: getattr(decoder_outputs, CACHE)},
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class VanillaTransformerForConditionalGeneration(VanillaTransformerGenerationMixin, VanillaTransformerPreTrainedModel):
    """The model of Figure 1 with its output projection, which shares the embedding matrix (section 3.4)."""

    _auto_class = "AutoModelForSeq2SeqLM"
    _tied_weights_keys = {"lm_head.weight": "model.shared.weight"}
    # training on a GPU compiles it
    loss_of_chunk: Callable = staticmethod(losses_and_probabilities)

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        # cross-entropy on labels aligned with the logits, without another shift
        self.loss_type = "ForMaskedLM"
        self.generation_config.update(num_beams=4, length_penalty=0.6)  # section 6.1
        # Trainer writes use_cache=False, which is meant for training, into the configuration of a model
        self.generation_config.use_cache = True
        self.post_init()

    def _apply(self, *args, **kwargs):
        # the weights move
        forget_graphs(self)
        return super()._apply(*args, **kwargs)

    def train(self, mode: bool = True):
        """Switch modes as torch does; training gets back the memory of the searches' graphs."""
        if mode:
            forget_graphs(self)
        return super().train(mode)

    @torch.inference_mode()
    def attention(self, inputs: Mapping[str, torch.Tensor], kind: str = "cross") -> torch.Tensor | None:
        """Return the attention weights with which the model reads sources and their translations.

        Args:
            inputs: arguments of `forward`: "input_ids" (B, S), "decoder_input_ids" (B, T) and masks.
            kind: "encoder", "decoder" or "cross".

        Returns:
            Weights in float32 on the CPU. *Shape:* (layers, B, heads, queries, keys).
        """
        tensors: Any = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        implementation = self.config._attn_implementation
        # the only one that returns its weights
        self.set_attn_implementation("eager")
        try:
            # without the projection to the vocabulary
            outputs = self.base_model(**tensors, output_attentions=True, use_cache=False)
        finally:
            self.set_attn_implementation(implementation)
        return torch.stack(outputs[f"{kind}_attentions"]).float().cpu()

    def prepare_decoder_input_ids_from_labels(self, labels: torch.Tensor) -> torch.Tensor:
        """Return `shift_right` of `labels`. *Shape:* (B, T) to (B, T)."""
        config = self.config
        assert config.pad_token_id is not None  # every model has both
        assert config.decoder_start_token_id is not None
        return shift_right(labels, config.pad_token_id, config.decoder_start_token_id)

    def __getstate__(self):
        # compiled for training only, as layers are, of which torch drops it as well
        state = dict(super().__getstate__())
        state.pop("loss_of_chunk", None)
        return state

    def _smoothed_losses(self, states: Any, labels: torch.Tensor, smoothing: float) -> tuple[Any, Any]:
        """Return the losses of decoder outputs (B, T, d_model), with smoothing and without, summed over the labels."""
        padding = self.config.pad_token_id
        return projected_cross_entropy(self.lm_head, states, labels, smoothing, padding, self.loss_of_chunk)

    @accept_past_key_values
    @can_return_tuple
    def forward(  # type: ignore[misc]
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        cache: Cache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        # transformers takes every argument named like "label" for labels
        smoothing: float | None = None,
        head_mask: torch.Tensor | None = None,
        decoder_head_mask: torch.Tensor | None = None,
        cross_attn_head_mask: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Seq2SeqLMOutput:
        """Return `logits` (B, T, vocab_size) and, given `labels` (B, T), the cross-entropy, ignoring labels of -100.

        The loss is the mean over the labels, or the sum divided by `num_items_in_batch`, which makes gradient
        accumulation exact. `smoothing` selects the loss of section 5.4, without logits, which saves memory, and adds
        the plain one as `cross_entropy`. The decoder's input defaults to the labels shifted right. The rest is as in
        `VanillaTransformerModel.forward`.
        """
        if labels is not None:
            # all positions are computed at once, so a cache would only take memory
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs: Seq2SeqModelOutput = self.model(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            head_mask=head_mask,
            decoder_head_mask=decoder_head_mask,
            cross_attn_head_mask=cross_attn_head_mask,
            **kwargs,
        )
        states = outputs.last_hidden_state
        rest = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        if labels is not None and smoothing is not None:
            losses = self._smoothed_losses(states, labels, smoothing)
            tokens = labels.ne(IGNORED_LABEL).sum() if num_items_in_batch is None else num_items_in_batch
            loss, cross_entropy = (value / tokens for value in losses)
            return TrainingOutput(loss=loss, cross_entropy=cross_entropy, **rest)
        # (B, T, vocab_size), without softmax, which is part of the loss and of the search
        logits = self.lm_head(states)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **rest)


note_methods(VanillaTransformerForConditionalGeneration, VanillaTransformerModel, VanillaTransformerDecoder)


__all__ = [
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
