"""Run a CTranslate2 export as a model with a `generate`."""

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
    """A CTranslate2 export with a `generate` method, which is all that `translation.translate` needs of a model.

    CTranslate2 supports log P / |Y|^alpha and one length limit per batch. For a model with the GNMT penalty, its n
    best are found by log P and scored again by the GNMT formula; a sentence that exceeds its own limit is decoded
    once more.

    Args:
        folder: what `export_ctranslate2` wrote.
        device: "cpu", "cuda" or "auto".
    """

    training = False
    device = torch.device("cpu")  # of the ids that go in and out

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
        """Tokens (B, T), start token and padding included, for the sources (B, S)."""
        pad: Any = self.config.pad_token_id
        mask = input_ids.ne(pad) if attention_mask is None else attention_mask.bool()
        sources = [row[real].tolist() for row, real in zip(input_ids, mask, strict=True)]
        beams = num_beams or self.generation_config.num_beams or 1
        alpha = self.generation_config.length_penalty if length_penalty is None else length_penalty
        positions = num_positions(self.config)
        limits = [max_new_tokens or min(len(source) + OUTPUT_MARGIN, positions) for source in sources]
        outputs = self._search(sources, beams, alpha, max(limits))
        for i, (_, longest) in enumerate(outputs):
            if longest > limits[i]:
                outputs[i] = self._search([sources[i]], beams, alpha, limits[i])[0]
        rows = [torch.tensor([self.config.decoder_start_token_id, *best]) for best, _ in outputs]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)

    def _search(self, sources: list[list[int]], beams: int, alpha: float, limit: int) -> list[tuple[list[int], int]]:
        """The best hypothesis of each source, and how long the longest of its n best was."""
        gnmt = self.config.length_normalization == "gnmt"
        try:
            results = self.translator.translate_batch(
                [self.tokenizer.convert_ids_to_tokens(source) for source in sources],
                beam_size=beams,
                num_hypotheses=beams if gnmt else 1,
                length_penalty=0.0 if gnmt else alpha,
                max_decoding_length=limit,
                min_decoding_length=0,  # an empty translation is one; CTranslate2 would force a token
                max_input_length=0,
                return_scores=True,
                return_end_token=True,
            )
        except RuntimeError as error:  # such as a text longer than the table of positions
            raise ValueError(f"CTranslate2: {error}") from error
        outputs = []
        for result in results:
            hypotheses, scores = result.hypotheses, result.scores
            if gnmt:
                scores = [s / gnmt_length_penalty(len(h), alpha) for s, h in zip(scores, hypotheses, strict=True)]
            best = max(range(len(scores)), key=scores.__getitem__)
            tokens: Any = self.tokenizer.convert_tokens_to_ids(hypotheses[best])
            outputs.append((tokens, max(map(len, hypotheses))))
        return outputs
