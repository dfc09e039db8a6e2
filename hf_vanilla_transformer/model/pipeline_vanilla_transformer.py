"""`pipeline("translation")`, which transformers 5 removed: translate strings as in transformers 4.

The pipeline works with every sequence-to-sequence model of transformers, not only with the models of this package.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers.generation import GenerationConfig
from transformers.pipelines.base import Pipeline

from .text_rules_vanilla_transformer import Directions, check_weights, max_source_tokens, normalise

_N_BEST_SETTINGS = ("num_return_sequences", "num_beams")  # n-best lists with scores are returned if both exceed 1
# arguments of the pipeline itself; all others are those of generate()
_PREPROCESSING = ("src_lang", "tgt_lang", "truncation")
_POSTPROCESSING = ("return_tensors", "return_text", "clean_up_tokenization_spaces")
_QUOTED_CHARACTERS = 40  # of a text that is too long, in the warning


class TranslationPipeline(Pipeline):
    """Translate a string, a list or column of strings, or a dataset or any iterable of strings, which is streamed.

    Returns `[{"translation_text": ...}]` for a string, and one such dictionary per string for a list, a tuple or a
    column of `datasets`. A dataset of torch, such as `KeyDataset`, a generator or another iterable returns an iterator
    over what each string alone returns. With beam search and `num_return_sequences=n`, returns the n best translations
    of a string, best first, each with its "score" (the log-probability divided by the model's length penalty); for a
    list, returns a list of such lists.

    `src_lang` and `tgt_lang` choose the direction of a model that has several, here and in `pipeline(...)`; so does
    the task "translation_xx_to_yy". As in transformers 4, the prefix and the settings that a model such as T5 has for
    the task (`task_specific_params` in its config) apply.

    The translation of a blank string is empty, and so, with a warning, is that of a text with more tokens than the
    model's `max_position_embeddings`, unless `truncation=True` shortens it. `clean_up_tokenization_spaces`,
    `return_tensors` ("translation_token_ids" instead of text) and `return_text` are those of transformers 4. All
    other arguments except `batch_size` and `num_workers` are passed to `generate`; their defaults are those saved with
    the model.

    Raises:
        ValueError: If an input is not a string, the model does not have the languages, or weights of it are NaN or
            infinite.
    """

    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]
    tokenizer: Any
    model: Any
    # otherwise transformers adds defaults to the saved settings
    _pipeline_calls_generate = False

    def __init__(self, *args, **kwargs):
        if direction := re.fullmatch("translation_([^_]+)_to_([^_]+)", kwargs.get("task") or ""):
            kwargs = {"src_lang": direction[1], "tgt_lang": direction[2], **kwargs}
        super().__init__(*args, **kwargs)
        check_weights(self.model)
        of_tasks = getattr(self.model.config, "task_specific_params", None) or {}
        of_task = of_tasks.get(self.task) or {}
        self.prefix: str = of_task.get("prefix") or getattr(self.model.config, "prefix", None) or ""
        # the others are not those of generate()
        self._task_settings = {name: value for name, value in of_task.items() if name in vars(GenerationConfig())}

    def __call__(self, inputs: Any, *args, **kwargs) -> Any:
        is_text = isinstance(inputs, (str, bytes, dict)) or not isinstance(inputs, Iterable)
        is_dataset = isinstance(inputs, Dataset)
        if is_text or is_dataset:
            # of which transformers checks the first, and streams the second
            return super().__call__(inputs, *args, **kwargs)
        if not isinstance(inputs, Sequence):
            return super().__call__((text for text in inputs), *args, **kwargs)

        # a column of `datasets` is a sequence, but no list
        inputs = list(inputs)
        for text in inputs:
            # all of them, before the first is translated
            _check_text(text)
        if not inputs:
            return []
        results = super().__call__(inputs, *args, **kwargs)
        # transformers 4 has no list around a single translation
        return [result[0] for result in results] if all(len(result) == 1 for result in results) else results

    def _sanitize_parameters(self, **generate_kwargs) -> tuple[dict, dict, dict]:
        # generate() refuses whatever else it does not know
        own = {name: generate_kwargs.pop(name, None) for name in (*_PREPROCESSING, *_POSTPROCESSING)}
        given = {name: value for name, value in own.items() if value is not None}
        postprocessing = {name: given.pop(name) for name in _POSTPROCESSING if name in given}

        build = getattr(self.tokenizer, "_build_translation_inputs", None)
        if build and (own["src_lang"] or own["tgt_lang"]):
            # multilingual models of transformers; sets the tokenizer's src_lang
            languages = {name: given.pop(name, None) for name in ("src_lang", "tgt_lang")}
            try:
                inputs = build("", return_tensors="pt", **languages)
            except KeyError as error:
                # from the table of languages of M2M100
                raise ValueError(f"This model does not have one of the languages {languages}.") from error
            generate_kwargs["forced_bos_token_id"] = inputs["forced_bos_token_id"]
        return given, generate_kwargs, postprocessing

    def preprocess(  # type: ignore[override]
        self, text: str, src_lang: str | None = None, tgt_lang: str | None = None, truncation: bool | str = False
    ) -> dict[str, torch.Tensor]:
        _check_text(text)
        directions = Directions(self.model.config)
        directions.check_tags([text])
        text = normalise(text)
        tag = directions.tag(src_lang, tgt_lang)
        num_tags = 0 if tag is None else 1
        limit = max_source_tokens(self.model.config, self.tokenizer)
        inputs = self.tokenizer(self.prefix + text, return_tensors="pt", verbose=False)
        skipped = not text
        length = inputs["input_ids"].shape[1] + num_tags
        if length > limit:
            # one of the names in transformers
            truncated = truncation and truncation != "do_not_truncate"
            if not truncated:
                skipped = True
                warnings.warn(
                    f"Not translated, because its {length} tokens are more than the {limit} that the model supports: "
                    f"{text[:_QUOTED_CHARACTERS]!r}... Split the text, or truncate it with truncation=True.",
                    stacklevel=2,
                )
            # a text that is not translated takes up a short row of its batch
            kept = self.prefix + text if truncated else ""
            inputs = self.tokenizer(kept, return_tensors="pt", truncation=True, max_length=limit - num_tags)
        if tag is not None:
            start = {"input_ids": self.tokenizer.convert_tokens_to_ids(tag), "attention_mask": 1}
            inputs = {name: torch.nn.functional.pad(inputs[name], (1, 0), value=start[name]) for name in start}
        # as a tensor, because transformers batches whatever preprocess() returns
        skipped_rows = torch.tensor([skipped])
        return {**{name: inputs[name] for name in ("input_ids", "attention_mask")}, "skipped": skipped_rows}

    def _forward(self, inputs: dict[str, torch.Tensor], **generate_kwargs) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Return the n best translations of B texts.

        Returns:
            "tokens" (B, n, T), "skipped" (B), whether a text has no translation, and "scores" (B, n) if n > 1.
        """
        skipped = inputs.pop("skipped")
        # Tokens first, even if the tokenizer has padded the batch on the left, which would change their positions
        order = inputs["attention_mask"].argsort(dim=1, descending=True, stable=True)
        inputs = {name: tensor.gather(1, order) for name, tensor in inputs.items()}
        if "generation_config" not in generate_kwargs:
            generate_kwargs = {**self._task_settings, **generate_kwargs}
        config = generate_kwargs.get("generation_config") or self.model.generation_config
        settings = {name: generate_kwargs.get(name, getattr(config, name)) or 1 for name in _N_BEST_SETTINGS}
        has_scores = min(settings.values()) > 1
        if has_scores:
            generate_kwargs |= {"return_dict_in_generate": True, "output_scores": True}
        generated = self.model.generate(**inputs, **generate_kwargs)
        # with `return_dict_in_generate`
        sequences = getattr(generated, "sequences", generated)
        outputs = {"tokens": sequences.unflatten(0, (len(skipped), -1)), "skipped": skipped}
        if has_scores:
            outputs["scores"] = generated.sequences_scores.unflatten(0, (len(skipped), -1))
        return outputs

    def postprocess(  # type: ignore[override]
        self,
        outputs: dict[str, torch.Tensor],
        return_tensors: bool = False,
        return_text: bool | None = None,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[dict[str, object]]:
        # of one text, whatever the batch size (n, T)
        tokens = outputs["tokens"][0]
        scores = outputs["scores"][0].tolist() if "scores" in outputs else None
        if outputs["skipped"].item():
            # one empty translation, which nothing has scored
            tokens = tokens[:1, :0]
            scores = None

        # as in transformers 4, tokens replace the text unless both are requested
        if return_text is None:
            return_text = not return_tensors
        results: list[dict[str, object]] = [{} for _ in tokens]
        for i, result in enumerate(results):
            if return_tensors or not return_text:
                result["translation_token_ids"] = tokens[i]
            if return_text:
                result["translation_text"] = self.tokenizer.decode(
                    tokens[i], skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_tokenization_spaces
                )
            if scores is not None:
                result["score"] = scores[i]
        return results


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"translation expects a string or a list of strings, got {type(text).__name__}: {text!r:.80}")


__all__ = ["TranslationPipeline"]
