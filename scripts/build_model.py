"""Build the small model that comes with a release, OUT/phrases-en-de, and pack it as OUT/phrases-en-de.zip.

python scripts/build_model.py OUT

It trains scripts/recipes/phrases.yaml, in some two minutes on two CPU cores. The card of the model has its scores and
says what it can do. The same command resumes a training that was interrupted; more words are flags for `train`.
"""

import contextlib
import shutil
import sys
from pathlib import Path

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.cli import main as vanilla_transformer
from hf_vanilla_transformer.files import CARD, write_whole
from hf_vanilla_transformer.sharing.card import CardDetails, model_card, read_scores

NAME = "phrases-en-de"
RECIPE = Path(__file__).parent / "recipes" / "phrases.yaml"
EXAMPLES = (
    "Today the children must help the teacher.",
    "Where do your friends live?",
    "Because it was raining, the old farmer did not open the window.",
    "The government lowered taxes in March.",
)
ABILITIES = """## What it can do

It translates sentences made of the some 600 words of the built-in phrases: family, animals, food, clothes, places, and
what people do with them, in main and subordinate clauses, questions and negations, in the present, past and future. It
knows no other words, and makes something up for them, as in the last row:

| English | its translation |
|---|---|
{rows}

It is for trying the package without training, and for looking at attention (`vanilla-transformer demo {name}`).

"""


def run(*words: str) -> None:
    """Run a verb, and end the program with its status if it fails."""
    if status := vanilla_transformer(list(words)):
        sys.exit(status)


def write_card(folder: Path, scores: Path) -> None:
    """Write the card of the model, with its scores and what it can do."""
    details = CardDetails(name=NAME, license="apache-2.0", scores=read_scores(str(scores)))
    card = str(model_card(folder, details))
    translations = Translator.load(str(folder)).translate(EXAMPLES)
    rows = "\n".join(
        f"| {source} | {translation.text} |" for source, translation in zip(EXAMPLES, translations, strict=True)
    )
    head, use, rest = card.partition("## Use it\n")
    write_whole(folder / CARD, head + ABILITIES.format(rows=rows, name=NAME) + use + rest)


def main(words: list[str]) -> None:
    if not words or words[0].startswith("-"):
        sys.exit("usage: build_model.py OUT [flags of train]")
    out = Path(words[0])
    training, model = out / f"{NAME}-run", out / NAME
    run("train", str(RECIPE), "--output_dir", str(training), *words[1:])
    run("average", str(training), "--last", "5", "--output_dir", str(model))
    scores = model / "evaluation.json"
    with open(scores, "w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
        run("evaluate", str(model), "--json")
    write_card(model, scores)
    print(shutil.make_archive(str(model), "zip", out, NAME))


if __name__ == "__main__":
    main(sys.argv[1:])
