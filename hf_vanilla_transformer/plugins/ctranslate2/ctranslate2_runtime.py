"""CTranslate2, fast on CPUs and GPUs: write its models, and run them through a `generate` like transformers'."""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase
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
from ...model.layers_vanilla_transformer import sinusoids
from ...model.text_rules_vanilla_transformer import num_positions

if TYPE_CHECKING:
    from ctranslate2 import TranslationResult

CONFIG_FOLDER = "vanilla_transformer"  # subfolder of an export with the original configuration of the model
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
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

    training = False
    returns_scores = True
    # it uses all cores by itself
    is_thread_safe = False
    # the device of input and output ids
    device = torch.device("cpu")

    def __init__(self, folder: str, device: str = "auto"):
        ctranslate2 = import_extra("ctranslate2", "export")
        self.config = VanillaTransformerConfig.from_pretrained(Path(folder, CONFIG_FOLDER))
        check_config(self.config, folder)
        self.generation_config = load_generation_config(str(Path(folder, CONFIG_FOLDER)), self.config)
        self.tokenizer = load_tokenizer(folder)
        threads = torch.get_num_threads()
        self.translator = ctranslate2.Translator(str(folder), device=device, intra_threads=threads)
        # every model has one
        self._pad_token_id = cast(int, self.config.pad_token_id)

    def eval(self) -> "CTranslate2Model":
        return self

    def train(self, mode: bool = True) -> "CTranslate2Model":
        return self

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
        rows = [torch.tensor([self.config.decoder_start_token_id, *ids]) for ids, _ in returned]
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
        first = end[0] if isinstance(end, list) else end
        return hypothesis._replace(ids=[*hypothesis.ids[:-1], first])

    def _search(
        self, sources: list[list[int]], limit: int, beams: int, count: int, alpha: float
    ) -> list[list[_Hypothesis]]:
        """Return `count` hypotheses of each source, best first."""
        try:
            results = self.translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(source) for source in sources],
                beam_size=beams,
                num_hypotheses=count,
                # 0 ranks by log P
                length_penalty=0.0 if has_gnmt_penalty(self.config) else alpha,
                max_decoding_length=limit,
                # allow empty translations; the default of CTranslate2 is 1
                min_decoding_length=0,
                max_input_length=0,
                suppress_sequences=[
                    self.tokenizer.convert_ids_to_tokens(word) for word in self.generation_config.bad_words_ids or ()
                ],
                return_scores=True,
                return_end_token=True,
            )
        except (RuntimeError, ValueError) as error:
            # such as a text longer than the position table, or a start token that is not in the export
            raise UserError(f"CTranslate2 failed: {error}") from error
        return [self._rank(result, alpha) for result in results]

    def _rank(self, result: "TranslationResult", alpha: float) -> list[_Hypothesis]:
        """Return the hypotheses of a sentence by their scores, which are those of the model's length penalty."""
        hypotheses = []
        for tokens, score in zip(result.hypotheses, result.scores, strict=True):
            ids: Any = self.tokenizer.convert_tokens_to_ids(tokens)
            # |Y| includes `</s>`, which CTranslate2 returns too
            penalty: Any = gnmt_length_penalty(len(ids), alpha) if has_gnmt_penalty(self.config) else 1.0
            hypotheses.append(_Hypothesis(ids, score / penalty))
        # sorted() keeps the order of equal scores
        return sorted(hypotheses, key=attrgetter("score"), reverse=True)


def _write(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path, quantization: str | None) -> None:
    """Convert a model, and write it with its configuration to `target`."""
    from ctranslate2.converters.transformers import _SUPPORTED_ACTIVATIONS, BartLoader
    from ctranslate2.specs.transformer_spec import TransformerSpec

    # BART has the same layers under the same names; only positions, and norms around embeddings, differ
    class VanillaTransformerLoader(BartLoader):
        def get_model_spec(self, model):
            config = model.config
            if {config.d_k, config.d_v} != {config.d_model / config.num_heads}:
                raise UserError(
                    "CTranslate2 supports only heads that are d_model / num_heads wide, but this model has d_k "
                    f"{config.d_k} and d_v {config.d_v}."
                )
            if config.activation_function not in _SUPPORTED_ACTIVATIONS:
                raise UserError(f"CTranslate2 does not support the activation {config.activation_function!r}.")
            self.positions = num_positions(config, is_export=True)
            spec = TransformerSpec.from_config(
                (config.num_encoder_layers, config.num_decoder_layers),
                config.num_heads,
                pre_norm=False,
                activation=_SUPPORTED_ACTIVATIONS[config.activation_function],
            )
            self.set_encoder(spec.encoder, model.model.encoder)
            self.set_decoder(spec.decoder, model.model.decoder)
            self.set_linear(spec.decoder.projection, model.lm_head)
            return spec

        def set_position_encodings(self, spec, module):
            if hasattr(module, "table"):
                # as a table, whatever the order of sines and cosines in CTranslate2 itself
                spec.encodings = sinusoids(self.positions, module.table.shape[1]).float()
            else:
                spec.encodings = module.weight

        def set_config(self, config, model, tokenizer):
            super().set_config(config, model, tokenizer)
            # CTranslate2 expects a name even of a start token that does not exist
            config.bos_token = config.bos_token or config.eos_token
            config.layer_norm_epsilon = model.config.layer_norm_eps

    # as CTranslate2's converter does with a model that it has loaded
    with torch.no_grad():
        spec = VanillaTransformerLoader()(model, tokenizer)
    spec.validate()
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
