"""CTranslate2, fast on CPUs and GPUs: write its models, and run them through a `generate` like transformers'."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from ...errors import UserError
from ...files import import_extra
from ...inference.runtime import Format
from ...loading import check_config, load_generation_config, load_tokenizer
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.generation_vanilla_transformer import (
    DEFAULT_LENGTH_PENALTY,
    gnmt_length_penalty,
    has_gnmt_penalty,
    has_limit,
    output_limits,
)
from ...model.text_rules_vanilla_transformer import num_positions
from .ctranslate2_files import check_files, convert, start_token, vocabulary

if TYPE_CHECKING:
    from ctranslate2 import TranslationResult

CONFIG_FOLDER = "vanilla_transformer"  # subfolder of an export with the original configuration of the model
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
# Of the settings that `loading.check_search` allows, those that the search here cannot follow, always or in sampling
_UNSUPPORTED = (
    *("encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "begin_suppress_tokens"),
    *("exponential_decay_length_penalty", "max_time"),
)
_UNSUPPORTED_IN_SAMPLING = ("typical_p", "min_p", "epsilon_cutoff", "eta_cutoff", "top_h")
_USAGE = """`ctranslate2.Translator(THIS_FOLDER)` loads it directly. Its input must be tokenised with
the tokenizer in it and end with `</s>`."""


class _Hypothesis(NamedTuple):
    """A translation without its start token, and its score."""

    ids: list[int]
    score: float


class CTranslate2Model:
    """A CTranslate2 export, as a `Runtime`.

    CTranslate2 scores hypotheses by log P / |Y|^alpha and has one length limit per batch. For a model with the GNMT
    length penalty, the search therefore ranks by log P, and the n-best list is rescored with the GNMT formula. If a
    hypothesis of a sentence exceeds the limit of that sentence, the sentence is decoded again with its own limit.

    Args:
        folder: a folder written by `exports.export_model`.
        device: "cpu", "cuda" or "auto".

    Raises:
        ImportError: if CTranslate2 is not installed.
    """

    returns_scores = True
    # the device of input and output ids
    device = torch.device("cpu")

    def __init__(self, folder: str, device: str = "auto"):
        ctranslate2 = import_extra("ctranslate2", "export")
        self.config = VanillaTransformerConfig.from_pretrained(Path(folder, CONFIG_FOLDER))
        check_config(self.config, folder)
        self.generation_config = load_generation_config(str(Path(folder, CONFIG_FOLDER)), self.config)
        _check_search(self.generation_config)
        self.tokenizer = load_tokenizer(folder)
        self._start_token_id = start_token(self.generation_config, self.config)
        check_files(Path(folder), self.config, self.tokenizer, self._start_token_id)
        self._tokens = vocabulary(self.tokenizer, self.config.vocab_size)
        self._ids = {token: token_id for token_id, token in enumerate(self._tokens)}
        threads = torch.get_num_threads()
        self.translator = ctranslate2.Translator(str(folder), device=device, intra_threads=threads)
        # every model has one
        self._pad_token_id = cast(int, self.config.pad_token_id)

    def attention(self, inputs: Mapping[str, torch.Tensor], kind: str = "cross") -> None:
        """Return nothing: CTranslate2 has no attention weights of several layers and heads."""

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
        num_return_sequences: int = 1,
        output_sequence_scores: bool = False,
    ) -> torch.Tensor | GenerateBeamEncoderDecoderOutput:
        """Return the generated ids (B, T), with the decoder start token and padding, for `input_ids` (B, S).

        Args:
            attention_mask: (B, S); by default everything but padding.
            num_beams: beam size; by default that of the generation config.
            length_penalty: alpha; by default that of the generation config.
            max_new_tokens: limit for every sentence; by default that of the generation config, or else the length of
                its source + 50 (section 6.1).
            num_return_sequences: number of hypotheses of each sentence, best first, at most the beam size.
            output_sequence_scores: whether to return scores too, as `VanillaTransformerGenerationMixin.generate`.

        Raises:
            ValueError: if more hypotheses than beams are requested, or CTranslate2 cannot decode the batch, for
                example because a source is too long.
        """
        beams = num_beams or self.generation_config.num_beams or 1
        if num_return_sequences > beams:
            raise UserError(f"num_return_sequences ({num_return_sequences}) exceeds the beam size ({beams}).")
        alpha = self.generation_config.length_penalty if length_penalty is None else length_penalty
        alpha = DEFAULT_LENGTH_PENALTY if alpha is None else alpha
        # With the length penalty of CTranslate2 itself, only as many hypotheses as are returned matter
        count = beams if has_gnmt_penalty(self.config) else num_return_sequences
        search = partial(self._search, beams=beams, count=count, alpha=alpha)

        mask = input_ids.ne(self._pad_token_id) if attention_mask is None else attention_mask.bool()
        # CTranslate2 pads its batches itself
        sources = [row[keep].tolist() for row, keep in zip(input_ids, mask, strict=True)]
        limits = [self._limit(source, max_new_tokens) for source in sources]
        batch = search(sources, max(limits))
        returned: list[_Hypothesis] = []
        for source, limit, hypotheses in zip(sources, limits, batch, strict=True):
            if max(len(hypothesis.ids) for hypothesis in hypotheses) > limit:
                [hypotheses] = search([source], limit)
            returned += [self._end_at(limit, hypothesis) for hypothesis in hypotheses[:num_return_sequences]]

        # (B num_return_sequences, T), as transformers returns them
        rows = [torch.tensor([self._start_token_id, *ids]) for ids, _ in returned]
        sequences: Any = pad_sequence(rows, batch_first=True, padding_value=self._pad_token_id)
        if not output_sequence_scores:
            return sequences
        scores = torch.tensor([score for _, score in returned])
        return GenerateBeamEncoderDecoderOutput(sequences=sequences, sequences_scores=scores)

    def _limit(self, source: list[int], max_new_tokens: int | None) -> int:
        """Return the maximum number of tokens of a translation, without the start token."""
        saved = self.generation_config
        if max_new_tokens is None and not has_limit(vars(saved)):
            return int(output_limits(torch.tensor(len(source)), num_positions(self.config, is_export=True)))
        return max_new_tokens or saved.max_new_tokens or saved.max_length - 1

    def _end_at(self, limit: int, hypothesis: _Hypothesis) -> _Hypothesis:
        """Return a hypothesis that ends as transformers does at the limit: with the forced token, if there is one."""
        end = self.generation_config.forced_eos_token_id
        if end is None or len(hypothesis.ids) < limit:
            return hypothesis
        # transformers gives all of them the same score, and takes the first token of several
        return hypothesis._replace(ids=[*hypothesis.ids[:-1], min(_as_list(end))])

    def _search(
        self, sources: list[list[int]], limit: int, beams: int, count: int, alpha: float
    ) -> list[list[_Hypothesis]]:
        """Return `count` hypotheses of each source, best first."""
        if self.generation_config.do_sample and beams > 1:
            raise UserError("CTranslate2 samples only without a beam; set num_beams to 1.")
        try:
            results = self.translator.translate_batch(
                [self._named(source) for source in sources],
                beam_size=beams,
                num_hypotheses=count,
                # 0 ranks by log P
                length_penalty=0.0 if has_gnmt_penalty(self.config) else alpha,
                max_decoding_length=limit,
                max_input_length=0,
                return_scores=True,
                return_end_token=True,
                **self._search_settings(len(sources)),
            )
        except (RuntimeError, ValueError) as error:
            # such as a text longer than the position table
            raise UserError(f"CTranslate2 failed: {error}") from error
        return [self._rank(result, alpha) for result in results]

    def _search_settings(self, num_sources: int) -> dict[str, Any]:
        """Return the arguments of `translate_batch` for the settings saved with the model."""
        saved = self.generation_config
        shortest = max((saved.min_length or 0) - 1, 0) if saved.min_new_tokens is None else saved.min_new_tokens
        ends = [] if saved.eos_token_id is None else _as_list(saved.eos_token_id)
        # transformers never takes the end for a bad word
        words = [word for word in saved.bad_words_ids or () if word not in [[end] for end in ends]]
        words += [[token_id] for token_id in saved.suppress_tokens or ()]
        arguments: dict[str, Any] = {
            # the default of CTranslate2 is 1, without empty translations
            "min_decoding_length": shortest,
            "no_repeat_ngram_size": saved.no_repeat_ngram_size or 0,
            "repetition_penalty": 1.0 if saved.repetition_penalty is None else saved.repetition_penalty,
            "suppress_sequences": [self._named(word) for word in words],
        }
        if ends:
            arguments["end_token"] = self._named(ends)
        if saved.forced_bos_token_id is not None:
            arguments["target_prefix"] = [self._named(_as_list(saved.forced_bos_token_id)[:1])] * num_sources
        if saved.do_sample:
            # of transformers, if it is not saved
            arguments["sampling_topk"] = 50 if saved.top_k is None else saved.top_k
            arguments["sampling_topp"] = 1.0 if saved.top_p is None else saved.top_p
            arguments["sampling_temperature"] = 1.0 if saved.temperature is None else saved.temperature
        return arguments

    def _named(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens with these ids, by which CTranslate2 knows them."""
        return [self._tokens[token_id] for token_id in ids]

    def _rank(self, result: "TranslationResult", alpha: float) -> list[_Hypothesis]:
        """Return the hypotheses of a sentence by their scores, which are those of the model's length penalty."""
        hypotheses = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self._ids[token] for token in tokens]
            # |Y| includes `</s>`, which CTranslate2 returns too
            penalty: Any = gnmt_length_penalty(len(ids), alpha) if has_gnmt_penalty(self.config) else 1.0
            hypotheses.append(_Hypothesis(ids, score / penalty))
        # sorted() keeps the order of equal scores
        return sorted(hypotheses, key=attrgetter("score"), reverse=True)


def _as_list(ids: int | list[int]) -> list[int]:
    return ids if isinstance(ids, list) else [ids]


def _check_search(settings: GenerationConfig) -> None:
    """Check that CTranslate2 can follow the decoding settings saved with a model.

    Raises:
        ValueError: if it cannot, naming those that it lacks.
    """
    defaults = GenerationConfig._get_default_generation_params()
    names = (*_UNSUPPORTED, *(_UNSUPPORTED_IN_SAMPLING if settings.do_sample else ()))
    lacking = [name for name in names if getattr(settings, name, None) not in (None, defaults.get(name))]
    if lacking:
        raise UserError(
            f"CTranslate2 does not support {', '.join(sorted(lacking))}: remove it from generation_config.json to "
            "export the model without."
        )


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path, quantization: str | None) -> None:
    """Convert a model, and write it with its configuration to `target`."""
    _check_search(model.generation_config)
    spec = convert(model, tokenizer, start_token(model.generation_config, model.config))
    spec.optimize(quantization=quantization)
    spec.save(str(target))
    model.config.save_pretrained(target / CONFIG_FOLDER)
    model.generation_config.save_pretrained(target / CONFIG_FOLDER)


FORMAT = Format(
    name="ctranslate2",
    title="CTranslate2",
    files=("model.bin", "*vocabulary*", f"{CONFIG_FOLDER}/*config.json"),
    usage=_USAGE,
    quantizations=QUANTIZATIONS,
    uses_gpus=True,
    check=lambda: import_extra("ctranslate2", "export"),
    recognises=lambda folder: (folder / CONFIG_FOLDER).is_dir(),
    write=_write,
    load=CTranslate2Model,
)
