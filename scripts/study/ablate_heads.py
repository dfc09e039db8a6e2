"""Measure what each attention head contributes: BLEU of a model without it.

python scripts/study/ablate_heads.py out/quickstart --test_file data/test
python scripts/study/ablate_heads.py out/quickstart --test_file data/test --sentences 200 --output heads.png

The test file is a table or the prefix of a Moses pair, as for `vanilla-transformer evaluate`. Every head of the
encoder, of the decoder and of the attention between them is removed in turn, by a head mask, and the text is
translated with greedy search. Prints a Markdown table, the most important head first, and can draw a picture. Many
heads can be removed without loss (Michel, Levy and Neubig 2019), but not all at once.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from tqdm import tqdm

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.inference.attention import COLOUR_MAP, KINDS, Head, all_heads, masks_without
from hf_vanilla_transformer.inference.metrics import bleu
from hf_vanilla_transformer.plugins.study.plots import new_figure, save


def measure(
    translator: Translator, sources: Sequence[str], references: Sequence[str], tokenize: str | None = None
) -> tuple[float, dict[Head, float]]:
    """Return the BLEU of a model, and that without each of its heads."""
    config = translator.model.config
    metric = bleu(tokenize)

    def score(**masks: Any) -> float:
        translations = translator.translate(sources, num_beams=1, **masks)
        return metric.corpus_score([each.text for each in translations], [references]).score

    whole = score()
    progress = tqdm(all_heads(config), desc="Removing heads", unit=" heads", disable=None)
    return whole, {head: score(**masks_without([head], config)) for head in progress}


def draw(whole: float, scores: dict[Head, float]) -> Figure:
    """Draw how much BLEU the model loses without each head: a panel for each kind of attention, a row per layer."""
    losses = {head: whole - score for head, score in scores.items()}
    # one scale for all panels, so that their colours can be compared; a head whose loss helps counts as 0
    largest = max(1e-3, *losses.values())
    sizes = {kind: max(each[1:] for each in losses if each.kind == kind) for kind in KINDS}
    figure = new_figure(11, 1.5 + 0.5 * max(layers for layers, _ in sizes.values()))
    panels = figure.subplots(1, len(KINDS))
    for axes, (kind, (layers, heads)) in zip(panels, sizes.items(), strict=True):
        grid = [[losses[Head(kind, i + 1, j + 1)] for j in range(heads)] for i in range(layers)]
        image = axes.imshow(grid, cmap=COLOUR_MAP, vmin=0, vmax=largest, aspect="auto")
        axes.set(title=f"{kind} attention", xlabel="head", ylabel="layer")
        axes.set_xticks(range(heads), range(1, heads + 1))
        axes.set_yticks(range(layers), range(1, layers + 1))
        for i, row in enumerate(grid):
            for j, loss in enumerate(row):
                colour = "black" if loss > largest / 2 else "white"
                axes.text(j, i, f"{loss:.1f}", ha="center", va="center", color=colour)
    figure.colorbar(image, ax=panels, label="BLEU lost")
    figure.suptitle(f"BLEU lost without each head, of {whole:.1f}")
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model, or its name on the Hub")
    parser.add_argument("--test_file", required=True, metavar="P", help="a table, or the prefix of a Moses pair")
    parser.add_argument("--sentences", type=int, metavar="N", help="use only the first N (default: all)")
    parser.add_argument("--bleu_tokenize", default="13a", help="sacreBLEU's tokenisation (default: 13a)")
    parser.add_argument("--output", metavar="FILE", help="draw a picture, which ends in .png or .svg")
    args = parser.parse_args(argv)
    try:
        translator = Translator.load(args.model)
        source_lang, target_lang = translator.directions.resolve(None, None)
        if source_lang is None or target_lang is None:
            raise ValueError(f"{args.model} does not say its languages.")
        pairs = TextFile((source_lang, target_lang), args.test_file).pairs()
        sources, references = (list(pairs[side][: args.sentences]) for side in ("source", "target"))
        whole, scores = measure(translator, sources, references, args.bleu_tokenize)
        print(f"BLEU of the model: {whole:.2f}\n")
        print(f"| attention | layer | head | BLEU without it | difference |\n{'|---' * 5}|")
        for head, score in sorted(scores.items(), key=lambda item: item[1]):
            print(f"| {head.kind} | {head.layer} | {head.number} | {score:.2f} | {score - whole:+.2f} |")
        if args.output:
            save(draw(whole, scores), args.output)
    except (ValueError, OSError) as error:
        sys.exit(f"ablate_heads.py: {error}")


if __name__ == "__main__":
    main()
