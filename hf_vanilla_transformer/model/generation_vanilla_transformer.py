"""Decoding as published (section 6.1): the GNMT length penalty, and outputs of at most the input length + 50 tokens.

Both are implemented as methods that transformers' `generate()` calls, so sampling, assisted generation and the other
modes run transformers' code. So do greedy and beam search with nearly any additional option (logits processors other
than those of `OutputRules`, returned scores or attentions, a forced prefix and so on). Plain greedy and beam search
run a faster loop over `IncrementalDecoder` with the same results.

From `generate()` to a result: it sets the limits, transformers' `generate()` prepares the inputs and calls
`_beam_search` or `_sample`, which are overridden here, and `_run_search` chooses the fast loop or transformers' own.
"""

import copy
from collections.abc import Mapping
from contextvars import ContextVar
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers.activations import ACT2FN
from transformers.generation import (
    EosTokenCriteria,
    GenerationConfig,
    GenerationMixin,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .cache_vanilla_transformer import CACHE
from .fast_search_vanilla_transformer import (
    MAX_FAST_BEAMS,
    OutputRules,
    beam_search,
    best_reachable_length,
    greedy_search,
)
from .layers_vanilla_transformer import (
    Dropout,
    LearnedPositions,
    SinusoidalPositions,
    VanillaTransformerAttention,
    VanillaTransformerDecoderLayer,
)
from .text_rules_vanilla_transformer import num_positions

DEFAULT_LENGTH_PENALTY = 1.0  # transformers' default, if neither sets one
OUTPUT_MARGIN = 50  # tokens by which a translation may be longer than its source

# (B, 1) length limits of the sentences that generate() is decoding in this thread, which bound the reachable scores
_current_limits: ContextVar[torch.Tensor | None] = ContextVar("vanilla_transformer_limits", default=None)

# receives the scores (N,) that the fast search has found, during `generate(output_sequence_scores=True)`
_search_scores: ContextVar[list[torch.Tensor] | None] = ContextVar("vanilla_transformer_scores", default=None)

HEAD_MASKS = ("head_mask", "decoder_head_mask", "cross_attn_head_mask")
# Unlike `head_mask`, which the encoder has applied by then, these change the decoder, or expect each token at once
_UNKNOWN_TO_FAST_SEARCH = ("decoder_attention_mask", "decoder_inputs_embeds", *HEAD_MASKS[1:], "streamer")

# Of each class for which the fast search stands, the methods that it computes without calling them
_ORIGINAL_METHODS: dict[type, dict[str, Any]] = {}
# All of these compute the attention of section 3.2.1
_ATTENTION_IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def note_methods(*classes: type) -> None:
    """Note the methods of classes that the fast search computes itself, to detect those that users replace later."""
    for cls in classes:
        bases = [base for base in cls.__mro__ if base is GenerationMixin or "vanilla_transformer" in base.__module__]
        defined = [(name, value) for base in bases for name, value in vars(base).items()]
        names = {name for name, value in defined if isinstance(value, FunctionType)}
        # the search runs within `generate`, and calls `before_step`
        names = {"forward", *names} - {"generate", "before_step"}
        _ORIGINAL_METHODS[cls] = {name: getattr(cls, name) for name in names if hasattr(cls, name)}


note_methods(
    # also those that this module overrides and calls
    GenerationMixin,
    *(nn.Linear, nn.LayerNorm, nn.Embedding, nn.Dropout, nn.ModuleList, Dropout, SinusoidalPositions),
    *(LearnedPositions, VanillaTransformerAttention, VanillaTransformerDecoderLayer),
)


def _is_patched(module: nn.Module) -> bool:
    """Return whether calling `module` runs code other than the methods of its class."""
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    # transformers leaves its hooks on a model that has once returned attentions; they do nothing unless requested.
    # Its hook for noise on the embeddings (NEFTune) does nothing in evaluation mode.
    ignored = ("transformers.utils.output_capturing", "transformers.integrations.neftune")
    harmless = all(getattr(hook, "__module__", None) in ignored for hook in hooks)
    # PEFT, for example, sets a method of the class on the object itself, and leaves it there
    methods = _ORIGINAL_METHODS.get(type(module), {"forward": None})
    own = vars(module).keys() & methods.keys()
    replaced = any(getattr(vars(module)[name], "__func__", None) is not methods[name] for name in own)
    return not harmless or replaced or "_hf_hook" in vars(module)


def can_decode_incrementally(model: Any) -> bool:
    """Return whether `IncrementalDecoder` computes the same as the decoder's `forward`, which it never calls.

    It does not for adapters, quantised or offloaded weights, subclasses, hooks, replaced methods, ensembles, exports,
    and custom attention functions.
    """
    if type(model) not in _ORIGINAL_METHODS:
        return False
    decoder = model.model.decoder
    # `IncrementalDecoder` calls it; all activations of transformers are element-wise
    activation = type(ACT2FN[model.config.activation_function])
    kinds = {*map(type, (model.model, *decoder.modules(), model.lm_head))} - {activation}
    return (
        not any(module.training for module in model.modules())
        and model.config._attn_implementation in _ATTENTION_IMPLEMENTATIONS
        and type(decoder.embed_tokens) is nn.Embedding
        and type(model.lm_head) is nn.Linear
        and kinds <= _ORIGINAL_METHODS.keys()
        and all(getattr(cls, name) is value for cls, own in _ORIGINAL_METHODS.items() for name, value in own.items())
        and all(type(weight) is nn.Parameter and not weight.is_meta for weight in model.parameters())
        and not any(map(_is_patched, model.modules()))
        and not (_global_forward_hooks or _global_forward_pre_hooks)
    )


def gnmt_length_penalty(length: int | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """Return lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14).

    Args:
        length: |Y|, the number of tokens including `</s>` but not the start token.
        alpha: the generation config's `length_penalty`.
    """
    return ((5 + length) / 6) ** alpha


def has_gnmt_penalty(config: Any) -> bool:
    """Return whether the scores of a model are divided by `gnmt_length_penalty`, not by |Y|^alpha."""
    return config.length_normalization == "gnmt"


def length_penalty(config: Any, length: int | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """Return the number by which a search divides the log-probability of `length` tokens after the start token."""
    return gnmt_length_penalty(length, alpha) if has_gnmt_penalty(config) else length**alpha


def output_limits(source_lengths: torch.Tensor, num_positions: int) -> torch.Tensor:
    """Return the largest |Y| of each sentence (section 6.1). *Shape:* (B,) to (B,)."""
    return (source_lengths + OUTPUT_MARGIN).clamp(max=num_positions)


def has_limit(settings: Mapping[str, Any]) -> bool:
    """Return whether decoding settings, by name, limit the output themselves, so that `output_limits` do not apply."""
    # what `VanillaTransformerGenerationMixin.generation_config` stores is not a limit that anybody has set
    not_a_limit = (None, settings.get("longest_output"))
    return settings.get("max_new_tokens") is not None or settings.get("max_length") not in not_a_limit


class SentenceLimits(StoppingCriteria):
    """Stop each sentence of a batch at its own length limit, so that results do not depend on the batch.

    Args:
        limits: (B,) maximum number of tokens after the start token.
    """

    def __init__(self, limits: torch.Tensor):
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.Tensor:
        # beam search passes several rows per sentence
        rows = input_ids.shape[0] // self.limits.shape[0]
        return input_ids.shape[1] - 1 >= self.limits.repeat_interleave(rows)


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`generate()` with the paper's length limit and length penalty (section 6.1).

    The limit applies only if neither the caller nor the generation config sets one (see `generation_config`). The
    penalty applies if the model config's `length_normalization` is "gnmt"; its alpha is the generation config's
    `length_penalty`.
    """

    config: Any
    # `generate` knows n-best lists and `output_sequence_scores`; exports may not
    returns_scores = True
    _generation_config: GenerationConfig | None = None

    @property
    def generation_config(self) -> GenerationConfig:
        """The decoding settings, which transformers saves with the model.

        Seq2SeqTrainer, among others, writes transformers' default of 20 tokens into settings without a `max_length`.
        These settings therefore always have one. If the user has set none, it is the limit for the longest source that
        the model translates, and `longest_output` repeats it, which marks it as no limit of the user's (`has_limit`).
        """
        settings: Any = self._generation_config
        if settings is not None and settings.max_length is None:
            # with the start token
            settings.max_length = 1 + self.config.max_position_embeddings + OUTPUT_MARGIN
            settings.longest_output = settings.max_length
            # otherwise transformers would not load `longest_output`
            settings._from_model_config = False
        return settings

    @generation_config.setter
    def generation_config(self, settings: GenerationConfig | None) -> None:
        self._generation_config = settings

    def before_step(self) -> None:
        """Do nothing before each step of a search; a server puts its own function in this place, for urgent work."""

    @property
    def is_thread_safe(self) -> bool:
        """Whether several threads may call `generate` at the same time, which is unknown of transformers' loops."""
        model: Any = self
        return model.device.type == "cpu" and can_decode_incrementally(model)

    def generate(
        self,
        inputs=None,
        generation_config=None,
        logits_processor=None,
        stopping_criteria=None,
        output_sequence_scores=False,
        **kwargs,
    ):
        """Generate as transformers does, with at most 50 tokens more than the source (including `</s>`) per sentence.

        Args:
            output_sequence_scores: whether to return a `GenerateBeamEncoderDecoderOutput` with only `sequences`
                (B num_return_sequences, T) and `sequences_scores` (B num_return_sequences,), the log-probabilities of
                the generated tokens divided by the length penalty: the scores by which beam search ranks. Unlike
                `output_scores`, it does not rule out the fast search, which needs no more memory for them. Other
                searches and sampling take one more pass, with the logits of all positions at once.

        Raises:
            ValueError: If there is no source.
        """
        if output_sequence_scores:
            return self._generate_with_scores(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        if "cache" in kwargs:
            # releases of transformers before 5.24 only know its former name
            kwargs[CACHE] = kwargs.pop("cache")
        self._mark_cached_prefix(kwargs)
        if isinstance(encoded := kwargs.get("encoder_outputs"), ModelOutput):
            # transformers repeats its tensors in place for beams
            kwargs["encoder_outputs"] = type(encoded)(**encoded)
        limits = self._default_limits(self._given_settings(inputs, generation_config, kwargs))
        if limits is not None:
            # for the longest sentence, with the start token; each has its own limit as a stopping criterion
            longest = 1 + int(limits.max())
            if generation_config is None:
                kwargs["max_length"] = longest
            else:
                # transformers advises against passing both
                kwargs.pop("max_length", None)
                generation_config = copy.deepcopy(generation_config)
                generation_config.max_length = longest
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or ()), SentenceLimits(limits)])
        token = _current_limits.set(None if limits is None else limits[:, None])
        try:
            return super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        finally:
            _current_limits.reset(token)

    def _mark_cached_prefix(self, kwargs: dict) -> None:
        """Add the mask of a prefix that contains the tokens of a given cache, as `generate` returns both.

        Without one, transformers takes all of the prefix for new tokens.
        """
        cache = kwargs.get(CACHE)
        prefix = kwargs.get("decoder_input_ids")
        if cache is None or prefix is None or kwargs.get("decoder_attention_mask") is not None:
            return
        if 0 < cache.get_seq_length() < prefix.shape[1]:
            kwargs["decoder_attention_mask"] = torch.ones_like(prefix)

    def _generate_with_scores(self, inputs, generation_config, *args, **kwargs) -> GenerateBeamEncoderDecoderOutput:
        """Return the sequences and the scores that the fast search finds, or those of one more pass."""
        scores: list[torch.Tensor] = []
        token = _search_scores.set(scores)
        try:
            sequences: Any = self.generate(inputs, generation_config, *args, **kwargs)
        finally:
            _search_scores.reset(token)
        # a model output with `return_dict_in_generate`
        sequences = getattr(sequences, "sequences", sequences)
        if not scores:
            scores = [self._score_sequences(sequences, self._given_settings(inputs, generation_config, kwargs))]
        return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores[0])

    def _expand_inputs_for_generation(self, *args, **model_kwargs):
        """Repeat the inputs for every beam as transformers does, but not the head masks, which have no batch."""
        masks = {name: model_kwargs.pop(name) for name in HEAD_MASKS if name in model_kwargs}
        input_ids, model_kwargs = super()._expand_inputs_for_generation(*args, **model_kwargs)  # type: ignore[misc]
        return input_ids, {**model_kwargs, **masks}

    def _prepare_generation_config(self, *args, **kwargs):
        """Prepare the settings as transformers does, without the `max_length` that is stored for lack of a limit."""
        settings, model_kwargs = super()._prepare_generation_config(*args, **kwargs)  # type: ignore[misc]
        if settings.max_new_tokens is not None and settings.max_length == getattr(settings, "longest_output", None):
            # otherwise transformers warns of two limits
            settings.max_length = None
        return settings, model_kwargs

    def _default_limits(self, settings: dict) -> torch.Tensor | None:
        """Return the maximum number of tokens after the start token (B,), or None if the settings limit the output."""
        if has_limit(settings):
            return None
        return output_limits(self._source_lengths(settings), self._max_output_tokens())

    def _max_output_tokens(self) -> int:
        """Return the number of tokens that the model has positions for; ensembles and exports override it."""
        return num_positions(self.config)

    @torch.no_grad()
    def _score_sequences(self, sequences: torch.Tensor, settings: dict) -> torch.Tensor:
        """Return the scores (N,) of generated sequences (N, T), from one pass of the model."""
        prefix = settings.get("decoder_input_ids", sequences[:, :1])
        # transformers puts a start token before a prefix that has none
        prefix_length = prefix.shape[1] + int(prefix[0, 0] != sequences[0, 0])
        generated = sequences[:, prefix_length:]
        arguments = self._scoring_arguments(sequences, prefix_length, settings)
        # position i predicts token i + 1: (N, T - prefix_length, V)
        logits = self(**arguments, decoder_input_ids=sequences[:, :-1]).logits[:, prefix_length - 1 :]  # type: ignore[operator]
        log_probs = logits.float().log_softmax(-1).gather(-1, generated[..., None])[..., 0]

        counts = self._count_generated(generated, prefix_length, settings)
        log_prob = (log_probs * counts).sum(1)
        length = counts.sum(1)
        if has_gnmt_penalty(self.config):
            # |Y| includes a given prefix (see `_update_finished_beams`)
            length = length + prefix_length - 1
        return log_prob / self._length_penalty(length, settings.get("length_penalty", DEFAULT_LENGTH_PENALTY))

    def _count_generated(self, generated: torch.Tensor, prefix_length: int, settings: dict) -> torch.Tensor:
        """Return which generated tokens (N, T) belong to a hypothesis: up to its first end and its limit."""
        is_end = torch.isin(generated, torch.tensor(settings.get("eos_token_id", []), device=generated.device))
        # up to the first end, itself included
        counts = is_end.cumsum(1) - is_end.long() == 0
        # not the padding after the last other token; padding in between was generated
        counts &= ~(generated == self.config.pad_token_id).long().flip(1).cumprod(1).flip(1).bool()
        if (limits := self._default_limits(settings)) is not None:
            # beyond its limit, a sequence is only filled up
            limits = limits.repeat_interleave(len(generated) // len(limits))
            positions = prefix_length - 1 + torch.arange(generated.shape[1], device=generated.device)
            counts &= positions < limits[:, None]
        return counts

    def _scoring_arguments(self, sequences: torch.Tensor, prefix_length: int, settings: dict) -> dict:
        """Return the arguments of `forward` for the sources and masks that `generate` got, repeated per sequence."""
        count, length = sequences.shape
        names = ("input_ids", "inputs_embeds", "attention_mask", "decoder_attention_mask")
        tensors = {name: settings[name] for name in names if name in settings}
        if "encoder_outputs" in settings:
            tensors["encoder_outputs"] = settings["encoder_outputs"][0]
        arguments: dict = {name: tensor.repeat_interleave(count // len(tensor), 0) for name, tensor in tensors.items()}

        if "encoder_outputs" in arguments:
            arguments["encoder_outputs"] = BaseModelOutput(arguments["encoder_outputs"])
        if (prefix_mask := arguments.get("decoder_attention_mask")) is not None:
            # transformers may have added a start token before the prefix, and no generated token is padding
            start = prefix_length - prefix_mask.shape[1]
            padding = (start, length - 1 - prefix_length)
            arguments["decoder_attention_mask"] = nn.functional.pad(prefix_mask, padding, value=1)
        return arguments | {name: settings[name] for name in HEAD_MASKS if name in settings}

    def _given_settings(self, inputs: torch.Tensor | None, generation_config: GenerationConfig | None, kwargs: dict):
        """Return all arguments of `generate` with a value, and what they leave open from the generation configs."""
        own = vars(self.generation_config)
        given = {} if generation_config is None else vars(generation_config)
        settings = {**own, **{name: value for name, value in given.items() if value is not None}, **kwargs}
        if inputs is not None:
            settings["input_ids"] = inputs
        # an argument of None removes a setting, as in transformers
        return {name: value for name, value in settings.items() if value is not None}

    def _source_lengths(self, settings: dict) -> torch.Tensor:
        """Return the number of tokens in each source (B,), from the mask, token ids, embeddings or encoder outputs."""
        if "attention_mask" in settings:
            # an integer for a mask of any dtype
            return settings["attention_mask"].ne(0).sum(-1)
        if "input_ids" in settings:
            return settings["input_ids"].ne(self.config.pad_token_id).sum(-1)
        if "inputs_embeds" in settings:
            states = settings["inputs_embeds"]
        elif "encoder_outputs" in settings:
            states = settings["encoder_outputs"][0]
        else:
            raise ValueError("There is no source to translate; pass input_ids, inputs_embeds or encoder_outputs.")
        return torch.full((states.shape[0],), states.shape[1], device=states.device)

    def _length_penalty(self, length: int | torch.Tensor, alpha: float) -> float | torch.Tensor:
        return length_penalty(self.config, length, alpha)

    def _update_finished_beams(self, **search):  # type: ignore[override]
        """Score finished hypotheses with the GNMT penalty; a length penalty of 0 disables transformers' own."""
        if has_gnmt_penalty(self.config):
            # cur_len counts the start token but not the token that has just ended a hypothesis, so it equals |Y|
            penalty = gnmt_length_penalty(search["cur_len"], search["length_penalty"])
            search |= {"topk_log_probs": search["topk_log_probs"] / penalty, "length_penalty": 0.0}
        return super()._update_finished_beams(**search)

    def _check_early_stop_heuristic(self, **search):  # type: ignore[override]
        """Return whether running hypotheses can still beat finished ones, under their penalty and own limits."""
        limits = _current_limits.get()
        if limits is None:
            longest = search["max_length"] - 1
        else:
            longest = limits
            search["max_length"] = limits + search["decoder_prompt_len"]
        if has_gnmt_penalty(self.config):
            alpha = search["length_penalty"]
            length = best_reachable_length(search["cur_len"] - 1, longest, search["early_stopping"], alpha)
            penalty = gnmt_length_penalty(length, alpha)
            search |= {"running_beam_scores": search["running_beam_scores"] / penalty, "length_penalty": 0.0}
        return super()._check_early_stop_heuristic(**search)

    def _can_use_fast_search(self, input_ids, stopping_criteria, settings, model_kwargs: dict) -> bool:
        """Return whether the fast loops support everything that this search needs besides its logits processors."""
        known = {MaxLengthCriteria, EosTokenCriteria, SentenceLimits}
        mask = model_kwargs.get("attention_mask")
        return (
            # a given prefix would have to be decoded first
            input_ids.shape[1] == 1
            # processes that shard a model run all steps together
            and not model_kwargs.get("synced_gpus")
            and settings.num_beams <= MAX_FAST_BEAMS
            and all(type(criteria) in known for criteria in stopping_criteria)
            and not (settings.do_sample or settings.return_dict_in_generate or settings.cache_implementation)
            and bool(settings.use_cache)
            and settings._eos_token_tensor is not None
            # an assistant proposes tokens for another model, which continues from its cache
            and not getattr(settings, "is_assistant", False)
            and model_kwargs[CACHE].get_seq_length() == 0
            and all(model_kwargs.get(name) is None for name in _UNKNOWN_TO_FAST_SEARCH)
            and can_decode_incrementally(self)
            # attention over a fully padded source depends on the attention function
            and (mask is None or bool(mask.any(-1).all()))
        )

    def _sample(self, *search, **kwargs):
        fast = greedy_search if _search_scores.get() is None else partial(greedy_search, has_scores=True)
        return self._run_search(fast, super()._sample, *search, **kwargs)  # type: ignore[misc]

    def _beam_search(self, *search, **kwargs):
        return self._run_search(beam_search, super()._beam_search, *search, **kwargs)  # type: ignore[misc]

    def _run_search(
        self, fast, transformers_own, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
    ) -> Any:
        """Run the fast search if it supports all that is requested, otherwise transformers' own."""
        rules = OutputRules.read(logits_processor)
        is_fast = self._can_use_fast_search(input_ids, stopping_criteria, generation_config, model_kwargs)
        if rules is None or not is_fast:
            return transformers_own(input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs)
        # generate() has repeated each sentence for every beam
        input_ids = input_ids[:: generation_config.num_beams]
        limits = self._length_limits(stopping_criteria, input_ids)
        sequences, scores = fast(self, input_ids, limits, rules, generation_config, model_kwargs)
        if scores is not None and (requested := _search_scores.get()) is not None:
            requested.append(scores)
        return sequences

    def _length_limits(self, stopping_criteria, input_ids: torch.Tensor) -> torch.Tensor:
        """Return the maximum number of tokens after the start token, per sentence (B, 1)."""
        limits = torch.full_like(input_ids, torch.iinfo(torch.long).max)
        for criteria in stopping_criteria:
            if isinstance(criteria, MaxLengthCriteria):
                limits = limits.clamp(max=criteria.max_length - 1)
            elif isinstance(criteria, SentenceLimits):
                limits = limits.minimum(criteria.limits[:, None].to(limits.device))
        return limits
