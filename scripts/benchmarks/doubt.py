"""Count which translations are doubtful: of text like the validation text, of other text, and of damaged text.

python scripts/benchmarks/doubt.py my-model data/multi30k/val data/multi30k/test_2016_flickr data/wmt/train

The limit is that of the translations of the validation text (here val.en), with beam 4 and greedily. The shares that
are below it are printed as a Markdown table, and how scores and chrF of the test text agree. Of the third text, which
is of another domain, 500 sentences are taken. About 3 minutes for a model of the size of `tiny` on one core.
"""

import argparse
import random
import string
from collections.abc import Callable
from statistics import correlation, mean

from measuring import describe_machine

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.formats import read_lines
from hf_vanilla_transformer.inference.metrics import doubtful_score, sentence_chrf

_SENTENCES = 500  # of each kind but the test text
_SEARCHES = {"beam 4": 4, "greedy search": 1}


def kinds(test: list[str], references: list[str], other: list[str]) -> dict[str, list[str]]:
    """Return sentences of each kind, by its name in the table.

    Args:
        test: sentences like those of the training text.
        references: their translations.
        other: sentences of another domain.
    """
    sample = random.sample(other, min(_SENTENCES, len(other)))
    vocabularies = {
        name: [word for line in lines for word in line.split()] for name, lines in (("a", other), ("b", test))
    }
    few = test[:_SENTENCES]

    def words(vocabulary: list[str]) -> list[str]:
        return [" ".join(random.choices(vocabulary, k=random.randint(5, 20))) for _ in range(_SENTENCES)]

    def changed(change: Callable[[list[str]], list[str]]) -> list[str]:
        return [" ".join(change(line.split())) for line in few]

    def with_errors(line: str) -> str:
        return "".join(random.choice(string.ascii_lowercase) if not random.randrange(8) else sign for sign in line)

    return {
        "test text": test,
        "text of another domain": sample,
        "its words in random order": words(vocabularies["a"]),
        "random letters": ["".join(random.choices(f"{string.ascii_lowercase}    ", k=50)) for _ in few],
        "translations instead of sources": references[:_SENTENCES],
        "test text with one of eight letters wrong": list(map(with_errors, few)),
        "words of the test text in random order": words(vocabularies["b"]),
        "sentences of the test text with their words shuffled": changed(lambda line: random.sample(line, len(line))),
        "sentences of the test text cut in the middle": changed(lambda line: line[: max(1, len(line) // 2)]),
    }


def ranks(values: list[float]) -> list[float]:
    """Return the rank of each value, from the lowest."""
    order = sorted(range(len(values)), key=values.__getitem__)
    return [float(rank) for _, rank in sorted(zip(order, range(len(order)), strict=True))]


def describe(means: list[float], chrf: list[float], limit: float) -> str:
    """Return how the scores of translations and their chrF agree."""
    rows = list(zip(means, chrf, strict=True))
    marked = mean([quality for value, quality in rows if value < limit] or [0.0])
    others = mean([quality for value, quality in rows if value >= limit] or [0.0])
    agreement = f"rank correlation with chrF {correlation(ranks(means), ranks(chrf)):.2f}"
    return f"limit {limit:.2f}, {agreement}, chrF of the marked {marked:.0f}, of the others {others:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name in ("validation", "test", "other"):
        parser.add_argument(name, help="parallel text: the path of both files without their languages")
    args = parser.parse_args()
    random.seed(1)

    translator = Translator.load(args.model)
    source, target = translator.directions.pairs[0]
    files = (f"{args.validation}.{source}", f"{args.test}.{source}", f"{args.test}.{target}", f"{args.other}.{source}")
    validation, test, references, other = (list(read_lines(file)) for file in files)

    def score(lines: list[str], num_beams: int) -> tuple[list[str], list[float]]:
        """Return the translations and their log-probabilities per token."""
        outputs = translator.translate_ids(translator.encode(lines, source, target), scores=True, num_beams=num_beams)
        means = translator.mean_log_probs(outputs, {"num_beams": num_beams})
        texts = translator.decode([output.hypotheses[0] if output.hypotheses else [] for output in outputs])
        return texts, [0.0 if value is None else value for value in means]

    sentences = kinds(test, references, other)
    rows = {name: [name] for name in sentences}
    for search, beams in _SEARCHES.items():
        limit = doubtful_score(score(validation, beams)[1])
        if limit is None:
            parser.error("the validation text has fewer than 100 sentences.")
        for name, lines in sentences.items():
            rows[name].append(f"{100 * mean(value < limit for value in score(lines, beams)[1]):.1f} %")
        texts, means = score(test, beams)
        print(f"{search}: {describe(means, sentence_chrf(texts, references), limit)}")
    print(f"\n| marked ({describe_machine()}) | {' | '.join(_SEARCHES)} |\n|---|{'---|' * len(_SEARCHES)}")
    for cells in rows.values():
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
