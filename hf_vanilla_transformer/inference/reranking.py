"""Rerank the hypotheses of a beam search with a model of the opposite direction."""

from collections.abc import Sequence
from itertools import islice

from ..errors import UserError
from ..model.text_rules_vanilla_transformer import num_positions
from .comparison import score_translations
from .hardware import MAX_TOKENS
from .translator import Output, Progress, Translator


class RerankingTranslator(Translator):
    """Translates as another translator does, but reranks its hypotheses with a model of the opposite direction.

    A hypothesis y of the source x scores log P(y | x) / lp(y), as in the search, plus `weight` log P(x | y) / lp(x),
    where lp is the length penalty. What a translation leaves out cannot be translated back (Li and Jurafsky 2016,
    arXiv:1601.00372; Yee et al. 2019, arXiv:1908.05731).

    Args:
        forward: the translator, of a model in torch or an export with scores.
        reverse: a translator of the opposite direction, in torch.
        weight: the weight of its score; that of the model itself is 1.
        source_lang, target_lang: the direction, for models that have several.

    Raises:
        ValueError: if a model does not have the direction, or an export has no scores.
    """

    def __init__(
        self,
        forward: Translator,
        reverse: Translator,
        weight: float,
        source_lang: str | None = None,
        target_lang: str | None = None,
    ):
        # not by the constructor, which would check all weights once more
        vars(self).update(vars(forward))
        if not forward.model.returns_scores:
            raise UserError(
                f"{forward.name} returns one translation without a score: rerank those of --backend torch."
            )
        self.reverse = reverse
        self.weight = weight
        self.languages = forward.directions.resolve(source_lang, target_lang)
        source_lang, target_lang = self.languages
        self._opposite = {"source_lang": target_lang, "target_lang": source_lang}
        try:
            reverse.directions.resolve(**self._opposite)
        except UserError as error:
            raise UserError(f"{reverse.name} must translate in the opposite direction. {error}") from None

    def encode(
        self,
        sentences: Sequence[str],
        source_lang: str | None = None,
        target_lang: str | None = None,
        tag: str | None = None,
    ) -> list[list[int]]:
        """Return the token ids of sentences, as `Translator.encode`.

        Raises:
            ValueError: also for a direction other than that of the reverse model.
        """
        own_source, own_target = self.languages
        source_lang = source_lang or own_source
        target_lang = target_lang or own_target
        if (source_lang, target_lang) != self.languages:
            raise UserError(
                f"The reverse model is for {own_source}-{own_target}, not for {source_lang}-{target_lang}."
            )
        return super().encode(sentences, source_lang, target_lang, tag)

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        nbest: int = 1,
        scores: bool = False,
        max_tokens: int | None = None,
        progress: Progress | None = None,
        **generate_kwargs: object,
    ) -> list[Output]:
        """Return the output for each source, as `Translator.translate_ids`, always with scores.

        Raises:
            ValueError: for a search with one beam, or one that samples.
        """
        if self._setting("do_sample", generate_kwargs):
            raise UserError("A reverse model reranks the hypotheses of a beam search: do not sample.")
        beams = self._num_beams(generate_kwargs)
        if beams == 1:
            raise UserError("A reverse model reranks the hypotheses of a beam search: use several beams.")
        outputs = super().translate_ids(sources, max(nbest, beams), True, max_tokens, progress, **generate_kwargs)
        texts = self.decode(sources)
        hypotheses = [self.decode(output.hypotheses) for output in outputs]
        indices = [i for i, source in enumerate(sources) if len(source) and self._fits(texts[i], hypotheses[i])]
        results = iter(
            score_translations(
                self.reverse,
                [hypothesis for i in indices for hypothesis in hypotheses[i]],
                [texts[i] for i in indices for _ in hypotheses[i]],
                max_tokens or MAX_TOKENS,
                None,  # the bar has counted the sentences already
                **self._opposite,
            )
        )
        for i in indices:
            # of each hypothesis: log P(x | y) / lp(x)
            scores_of_source = [
                log_prob / self._length_penalty(tokens, generate_kwargs)
                for log_prob, tokens in islice(results, len(hypotheses[i]))
            ]
            outputs[i] = self._rerank(outputs[i], scores_of_source, generate_kwargs)
        return [each._replace(hypotheses=each.hypotheses[:nbest], scores=each.scores[:nbest]) for each in outputs]

    def _fits(self, source: str, hypotheses: list[str]) -> bool:
        """Return whether the reverse model can score a sentence; if not, its hypotheses keep their order."""
        reverse = self.reverse
        (target,) = reverse.tokenizer(text_target=[source], verbose=False)["input_ids"]
        lengths = map(len, reverse.encode(hypotheses, **self._opposite))
        return len(target) <= num_positions(reverse.model.config) and all(reverse.problem(n) is None for n in lengths)

    def _rerank(self, output: Output, reverse_scores: list[float], settings: dict[str, object]) -> Output:
        """Return an output in the order of both scores, which are added up; the best hypothesis may be doubtful."""
        totals = [score + self.weight * other for score, other in zip(output.scores, reverse_scores, strict=True)]
        order = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        output = output._replace(
            hypotheses=[output.hypotheses[i] for i in order], scores=[output.scores[i] for i in order]
        )
        # the limit of doubt is for the model's own scores
        (output,) = self._with_doubts([output], settings)
        return output._replace(scores=[totals[i] for i in order])
