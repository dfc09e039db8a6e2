"""Decoding as published (section 6.1): the GNMT length penalty, and an output of at most the input's length + 50.

Both are methods that transformers' own `generate()` calls, so greedy search, beam search, sampling and the rest stay
transformers' code.
"""

from contextvars import ContextVar

import torch
from transformers.generation import GenerationMixin, StoppingCriteria, StoppingCriteriaList

OUTPUT_MARGIN = 50  # tokens that a translation may be longer than its source

# the limits of the sentences that this thread's generate() is decoding, (B, 1), for the bound on what beams can reach
_limits: ContextVar[torch.Tensor | None] = ContextVar("vanilla_transformer_limits", default=None)


def gnmt_length_penalty(length: int | torch.Tensor, alpha: float) -> float | torch.Tensor:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14); |Y| counts `</s>` but not the start token."""
    return ((5 + length) / 6) ** alpha


class SentenceLimits(StoppingCriteria):
    """Ends each sentence of a batch at its own number of tokens, so that its company in the batch changes nothing.

    Args:
        limits: (B,) tokens after the start token.
    """

    def __init__(self, limits: torch.Tensor):
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores, **kwargs) -> torch.BoolTensor:
        rows = input_ids.shape[0] // self.limits.shape[0]  # beam search brings several candidates a sentence
        return input_ids.shape[1] - 1 >= self.limits.repeat_interleave(rows)


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`generate()` with the paper's limit and its length penalty.

    The limit holds only where the caller and the generation config name none. The penalty holds where the config's
    `length_normalization` is "gnmt"; its alpha is `length_penalty`.
    """

    def generate(self, inputs=None, generation_config=None, logits_processor=None, stopping_criteria=None, **kwargs):
        """transformers' `generate`, with each sentence's limit its own source length (with `</s>`) + 50."""
        limits = None
        if not self._names_a_limit(generation_config, kwargs):
            limits = self._source_lengths(inputs, kwargs) + OUTPUT_MARGIN
            kwargs["max_length"] = 1 + int(limits.max())
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or ()), SentenceLimits(limits)])
        token = _limits.set(None if limits is None else limits[:, None])
        try:
            return super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)
        finally:
            _limits.reset(token)

    def _names_a_limit(self, generation_config, kwargs: dict) -> bool:
        given = [kwargs, *(vars(c) for c in (generation_config, self.generation_config) if c is not None)]
        return any(settings.get(name) is not None for settings in given for name in ("max_length", "max_new_tokens"))

    def _source_lengths(self, inputs: torch.Tensor | None, kwargs: dict) -> torch.Tensor:
        """(B,) real tokens of each source, from the mask, else the ids, else what stands in their place."""
        if kwargs.get("attention_mask") is not None:
            return kwargs["attention_mask"].sum(-1)
        input_ids = inputs if inputs is not None else kwargs.get("input_ids")
        if input_ids is not None:
            return input_ids.ne(self.config.pad_token_id).sum(-1)
        states = kwargs.get("inputs_embeds")
        if states is None and kwargs.get("encoder_outputs") is None:
            raise ValueError("There is nothing to translate: give input_ids, inputs_embeds or encoder_outputs.")
        if states is None:
            states = kwargs["encoder_outputs"][0]
        return torch.full((states.shape[0],), states.shape[1], device=states.device)

    def _update_finished_beams(self, *, topk_log_probs, cur_len, decoder_prompt_len, length_penalty, **kwargs):
        """Scores finished hypotheses by the GNMT penalty; transformers' own division is turned off by alpha = 0."""
        if self.config.length_normalization == "gnmt":
            # cur_len counts the start token but not yet the token that has just ended a hypothesis: it is |Y|
            topk_log_probs = topk_log_probs / gnmt_length_penalty(cur_len, length_penalty)
            length_penalty = 0.0
        return super()._update_finished_beams(
            topk_log_probs=topk_log_probs,
            cur_len=cur_len,
            decoder_prompt_len=decoder_prompt_len,
            length_penalty=length_penalty,
            **kwargs,
        )

    def _check_early_stop_heuristic(
        self, *, running_beam_scores, cur_len, max_length, decoder_prompt_len, early_stopping, length_penalty, **kwargs
    ):
        """The best score a running hypothesis can still reach, by the same formula and the sentence's own limit."""
        limits = _limits.get()
        longest = max_length - 1 if limits is None else limits
        if self.config.length_normalization == "gnmt":
            reachable = longest if early_stopping == "never" and length_penalty > 0.0 else cur_len - 1
            running_beam_scores = running_beam_scores / gnmt_length_penalty(reachable, length_penalty)
            length_penalty = 0.0
        elif limits is not None:
            max_length = longest + decoder_prompt_len
        return super()._check_early_stop_heuristic(
            running_beam_scores=running_beam_scores,
            cur_len=cur_len,
            max_length=max_length,
            decoder_prompt_len=decoder_prompt_len,
            early_stopping=early_stopping,
            length_penalty=length_penalty,
            **kwargs,
        )
