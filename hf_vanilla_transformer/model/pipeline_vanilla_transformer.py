"""`pipeline("translation")`, which transformers 5 took out: strings in, translations out, as in transformers 4.

Works with every sequence-to-sequence model of transformers, this package's and others.
"""

import logging
from typing import Any

import torch
from transformers.pipelines.base import Pipeline

logger = logging.getLogger(__name__)
_BEST = ("num_return_sequences", "num_beams")  # with both above 1 there are n best with scores


class TranslationPipeline(Pipeline):
    """Translates strings: one, a list of them, or a data set or generator, which is streamed.

    A string gives `[{"translation_text": ...}]`, a list one such dictionary for each string. With
    `num_return_sequences=n` a string gives its n best, the best first, and each has its "score", the log-probability
    divided by the model's length penalty; a list then gives a list of such lists. Blank strings give an empty
    translation. What is longer than the tokenizer's limit, or else the model's `max_position_embeddings`, is cut, with
    a warning. All arguments but `batch_size` and `num_workers` go to `generate`; what is not given is as saved with
    the model.

    Raises:
        ValueError: for what is not a string.
    """

    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]
    tokenizer: Any
    model: Any
    _pipeline_calls_generate = False  # which would add defaults to what is saved with the model

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(inputs, (list, tuple)):
            inputs = list(inputs)
            for text in inputs:
                _check(text)
            if not inputs:
                return []
            results = super().__call__(inputs, *args, **kwargs)
            return [result[0] for result in results] if all(len(result) == 1 for result in results) else results
        return super().__call__(inputs, *args, **kwargs)

    def _sanitize_parameters(self, **generate_kwargs: Any) -> tuple[dict, dict, dict]:
        return {}, generate_kwargs, {}

    def _longest(self) -> int:
        limit = self.tokenizer.model_max_length
        return limit if limit < 10**9 else getattr(self.model.config, "max_position_embeddings", None) or 1024

    def preprocess(self, text: str) -> dict[str, Any]:  # type: ignore[override]
        _check(text)
        longest = self._longest()
        inputs = self.tokenizer(text, return_tensors="pt", verbose=False)
        length = inputs["input_ids"].shape[1]
        if length > longest:
            logger.warning("A text of %d tokens was cut to %d, the most that the model takes.", length, longest)
            inputs = self.tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
        return {
            **{name: inputs[name] for name in ("input_ids", "attention_mask")},
            "blank": torch.tensor([not text.strip()]),
        }

    def _forward(  # type: ignore[override]
        self, inputs: dict[str, Any], **generate_kwargs: Any
    ) -> dict[str, torch.Tensor]:
        """Of B sentences the n best: "tokens" (B, n, T), "blank" (B), and "scores" (B, n) for n > 1."""
        blank = inputs.pop("blank")
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        settings = {name: generate_kwargs.get(name, getattr(config, name)) or 1 for name in _BEST}
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


def _check(text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"Translation takes a string or a list of strings, not {type(text).__name__}: {text!r:.80}")


__all__ = ["TranslationPipeline"]
