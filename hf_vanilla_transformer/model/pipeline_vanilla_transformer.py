"""`pipeline("translation")`, which transformers 5 removed: translate strings as in transformers 4.

The pipeline works with every sequence-to-sequence model of transformers, not only with the models of this package.
"""

import logging
from typing import Any

import torch
from transformers.pipelines.base import Pipeline

from .text_rules_vanilla_transformer import Directions

logger = logging.getLogger(__name__)
_N_BEST_SETTINGS = ("num_return_sequences", "num_beams")  # n-best lists with scores are returned if both exceed 1


class TranslationPipeline(Pipeline):
    """Translate a string, a list of strings, or a dataset or generator of strings, which is streamed.

    Returns `[{"translation_text": ...}]` for a string, and one such dictionary per string for a list. With beam search
    and `num_return_sequences=n`, returns the n best translations of a string, best first, each with its "score" (the
    log-probability divided by the model's length penalty); for a list, returns a list of such lists.

    `src_lang` and `tgt_lang` choose the direction of a model that has several, here and in `pipeline(...)`.

    The translation of a blank string is empty. Text that is longer than the tokenizer's limit, or without one the
    model's `max_position_embeddings`, is truncated with a warning. All arguments except `batch_size` and `num_workers`
    are passed to `generate`; their defaults are those saved with the model.

    Raises:
        ValueError: If an input is not a string, or the model does not have the languages.
    """

    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]
    tokenizer: Any
    model: Any
    _pipeline_calls_generate = False  # otherwise transformers adds defaults to the saved settings

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (list, tuple)):
            inputs = list(inputs)
            for text in inputs:
                _check_text(text)
            if not inputs:
                return []
            results = super().__call__(inputs, *args, **kwargs)
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        return super().__call__(inputs, *args, **kwargs)

    def _sanitize_parameters(
        self, src_lang: str | None = None, tgt_lang: str | None = None, **generate_kwargs: Any
    ) -> tuple[dict, dict, dict]:
        languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        languages = {name: value for name, value in languages.items() if value is not None}
        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build and languages:  # as multilingual models of transformers need it; also sets the tokenizer's src_lang
            inputs = build("", return_tensors="pt", src_lang=src_lang, tgt_lang=tgt_lang)
            return {}, {**generate_kwargs, "forced_bos_token_id": inputs["forced_bos_token_id"]}, {}
        return languages, generate_kwargs, {}

    def _max_source_tokens(self) -> int:
        limit = self.tokenizer.model_max_length
        return limit if limit < 10**9 else getattr(self.model.config, "max_position_embeddings", None) or 1024

    def preprocess(  # type: ignore[override]
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None
    ) -> dict[str, Any]:
        _check_text(text)
        tag = Directions(self.model.config).tag(src_lang, tgt_lang)
        limit = self._max_source_tokens() - (tag is not None)
        inputs = self.tokenizer(text, return_tensors="pt", verbose=False)
        length = inputs["input_ids"].shape[1]
        if length > limit:
            logger.warning("A text of %d tokens was truncated to %d, the model's maximum.", length, limit)
            inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=limit)
        if tag is not None:
            start = {"input_ids": self.tokenizer.convert_tokens_to_ids(tag), "attention_mask": 1}
            inputs = {name: torch.nn.functional.pad(inputs[name], (1, 0), value=start[name]) for name in start}
        return {
            **{name: inputs[name] for name in ("input_ids", "attention_mask")},
            "blank": torch.tensor([not text.strip()]),
        }

    def _forward(  # type: ignore[override]
        self, inputs: dict[str, Any], **generate_kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Return the n best translations of B texts: "tokens" (B, n, T), "blank" (B), and "scores" (B, n) if n > 1."""
        blank = inputs.pop("blank")
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        settings = {name: generate_kwargs.get(name, getattr(config, name)) or 1 for name in _N_BEST_SETTINGS}
        if min(settings.values()) == 1:
            tokens = self.model.generate(**inputs, **generate_kwargs)
            return {"tokens": tokens.unflatten(0, (len(blank), -1)), "blank": blank}
        outputs = self.model.generate(**inputs, **generate_kwargs, return_dict_in_generate=True, output_scores=True)
        tokens, scores = (x.unflatten(0, (len(blank), -1)) for x in (outputs.sequences, outputs.sequences_scores))
        return {"tokens": tokens, "blank": blank, "scores": scores}

    def postprocess(self, outputs: dict[str, torch.Tensor]) -> list[dict[str, Any]]:  # type: ignore[override]
        if outputs["blank"].item():
            return [{"translation_text": ""}]
        texts = self.tokenizer.batch_decode(outputs["tokens"][0], skip_special_tokens=True)
        if "scores" not in outputs:
            return [{"translation_text": text} for text in texts]
        scores = outputs["scores"][0].tolist()
        return [{"translation_text": text, "score": score} for text, score in zip(texts, scores, strict=True)]


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"translation expects a string or a list of strings, got {type(text).__name__}: {text!r:.80}")


__all__ = ["TranslationPipeline"]
