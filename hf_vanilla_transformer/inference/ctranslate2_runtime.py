"""Run a CTranslate2 export, through a `generate` method like that of transformers."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig

from ..files import import_extra
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.generation_vanilla_transformer import OUTPUT_MARGIN, gnmt_length_penalty
from ..model.loading import load
from .exports import CONFIG_FOLDER, num_positions


class CTranslate2Model:
    """A CTranslate2 export with the part of the interface of a model that `translation.translate` uses.

    CTranslate2 scores hypotheses by log P / |Y|^alpha and has one length limit per batch. For a model with the GNMT
    length penalty, the search therefore ranks by log P, and the n-best list is rescored with the GNMT formula. If a
    hypothesis of a sentence exceeds the limit of that sentence, the sentence is decoded again with its own limit.

    Args:
        folder: a folder written by `export_ctranslate2`.
        device: "cpu", "cuda" or "auto".

    Raises:
        ImportError: if CTranslate2 is not installed.
    """

    training = False
    device = torch.device("cpu")  # the device of input and output ids

    def __init__(self, folder: str, device: str = "auto"):
        ctranslate2 = import_extra("ctranslate2", "export")
        self.config = VanillaTransformerConfig.from_pretrained(Path(folder, CONFIG_FOLDER))
        self.generation_config = GenerationConfig.from_pretrained(Path(folder, CONFIG_FOLDER))
        self.tokenizer = load(AutoTokenizer, folder)
        threads = torch.get_num_threads()
        self.translator = ctranslate2.Translator(str(folder), device=device, intra_threads=threads)

    def eval(self) -> "CTranslate2Model":
        return self

    def train(self, mode: bool = True) -> "CTranslate2Model":
        return self

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_new_tokens: int | None = None,
    ) -> torch.Tensor:
        """Return the generated ids (B, T), with the decoder start token and padding, for `input_ids` (B, S).

        Args:
            attention_mask: (B, S); by default everything but padding.
            num_beams: beam size; by default that of the generation config.
            length_penalty: alpha; by default that of the generation config.
            max_new_tokens: limit for every sentence; by default the length of its source + 50 (section 6.1).

        Raises:
            ValueError: if CTranslate2 cannot decode the batch, for example because a source is too long.
        """
        pad_token_id: Any = self.config.pad_token_id
        mask = input_ids.ne(pad_token_id) if attention_mask is None else attention_mask.bool()
        sources = [row[keep].tolist() for row, keep in zip(input_ids, mask, strict=True)]
        beams = num_beams or self.generation_config.num_beams or 1
        alpha = self.generation_config.length_penalty if length_penalty is None else length_penalty
        max_positions = num_positions(self.config)
        limits = [max_new_tokens or min(len(source) + OUTPUT_MARGIN, max_positions) for source in sources]
        outputs = self._search(sources, beams, alpha, max(limits))
        for i, (_, longest) in enumerate(outputs):
            if longest > limits[i]:
                outputs[i] = self._search([sources[i]], beams, alpha, limits[i])[0]
        rows = [torch.tensor([self.config.decoder_start_token_id, *best]) for best, _ in outputs]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id)

    def _search(self, sources: list[list[int]], beams: int, alpha: float, limit: int) -> list[tuple[list[int], int]]:
        """Return, for each source, the ids of the best hypothesis and the length of the longest of its n best."""
        gnmt = self.config.length_normalization == "gnmt"
        try:
            results = self.translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(source) for source in sources],
                beam_size=beams,
                num_hypotheses=beams if gnmt else 1,
                length_penalty=0.0 if gnmt else alpha,
                max_decoding_length=limit,
                min_decoding_length=0,  # allow empty translations; the default of CTranslate2 is 1
                max_input_length=0,
                return_scores=True,
                return_end_token=True,
            )
        except RuntimeError as error:  # such as a text longer than the position table
            raise ValueError(f"CTranslate2 failed: {error}") from error
        outputs = []
        for result in results:
            hypotheses, scores = result.hypotheses, result.scores
            if gnmt:
                lengths = map(len, hypotheses)
                scores = [s / gnmt_length_penalty(length, alpha) for s, length in zip(scores, lengths, strict=True)]
            best = max(range(len(scores)), key=scores.__getitem__)
            tokens: Any = self.tokenizer.convert_tokens_to_ids(hypotheses[best])
            outputs.append((tokens, max(map(len, hypotheses))))
        return outputs
