"""Translate the requests to an inference endpoint of the Hub: `push --endpoint` uploads this file as `handler.py`.

It stands alone: an endpoint has transformers and the files of the model's repository, but not this package.
"""

from typing import Any

from transformers import pipeline

_BATCH_SIZE = 32

# What a request may set. Anything else that `generate` takes could load code (`custom_generate`) or use all memory.
_TYPES: dict[str, type | tuple[type, ...]] = {
    "src_lang": str,
    "tgt_lang": str,
    "truncation": (bool, str),
    "clean_up_tokenization_spaces": bool,
}
_RANGES = {"num_beams": (1, 32), "length_penalty": (-10.0, 10.0), "max_new_tokens": (1, 2048)}


class EndpointHandler:
    """The interface of huggingface-inference-toolkit, which creates one handler and calls it with each request."""

    def __init__(self, path: str = ""):
        # The code of the model is in the same repository as this file, which the endpoint runs anyway
        self.translator: Any = pipeline("translation", model=path, trust_remote_code=True)  # type: ignore[call-overload]

    def __call__(self, data: dict[str, Any]) -> list[dict[str, str]]:
        """Return `[{"translation_text": ...}, ...]`, one for each text.

        A text that is too long for the model has an empty translation, and a line in the log.

        Args:
            data: "inputs", a text or a list of texts, and optionally "parameters": what `_TYPES` and `_RANGES` name,
                also inside "generate_parameters", where huggingface_hub puts what is for the search.

        Raises:
            ValueError: If a request is wrong; the toolkit answers 400 with the message.
        """
        texts = data.get("inputs")
        if not all(map(_is_text, texts if isinstance(texts, list) else [texts])):
            raise ValueError("inputs must be a text or a list of texts, in valid Unicode.")
        parameters = data.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise ValueError("parameters must be an object.")
        return self.translator(texts, batch_size=_BATCH_SIZE, **_checked(parameters))


def _is_text(value: object) -> bool:
    """Return whether a value is a text, without the lone surrogates that JSON can escape and no tokenizer accepts."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _checked(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request as arguments of the pipeline, without those that are null.

    Raises:
        ValueError: If one is unknown or has a wrong value.
    """
    given = dict(parameters)
    nested = given.pop("generate_parameters", None) or {}
    if not isinstance(nested, dict):
        raise ValueError("generate_parameters must be an object.")
    given = {name: value for name, value in (given | nested).items() if value is not None}
    for name, value in given.items():
        if name in _RANGES:
            low, high = _RANGES[name]
            # true and false are integers
            valid = isinstance(value, (int, type(low))) and not isinstance(value, bool) and low <= value <= high
        elif name in _TYPES:
            valid = isinstance(value, _TYPES[name])
        else:
            raise ValueError(f"{name:.80} is not supported; use only {', '.join([*_TYPES, *_RANGES])}.")
        if not valid:
            expected = f", which is from {low} to {high}" if name in _RANGES else ""
            raise ValueError(f"{value!r:.80} is no value of {name}{expected}.")
    return given
