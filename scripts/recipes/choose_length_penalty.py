"""Choose the length penalty with which a model has the highest BLEU on a validation text, and save it with the model.

python scripts/recipes/choose_length_penalty.py runs/multi30k-pairs --validation_file data/multi30k/val

The text is a table or the prefix of a Moses pair, as for `vanilla-transformer evaluate`; it should not be a test text.
Alpha is saved in generation_config.json, and in the model's card unless someone has edited that.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.files import CARD, read_json, write_whole
from hf_vanilla_transformer.flags import finite
from hf_vanilla_transformer.inference.metrics import bleu, check_tokenization
from hf_vanilla_transformer.sharing.card import model_card, write_card


def measure(
    translator: Translator, pair: tuple[str, str], file: str, alphas: Sequence[float], tokenize: str
) -> dict[float, float]:
    """Return the BLEU of the translations of a text with each length penalty.

    Args:
        pair: source and target language.
        file: the text.
        tokenize: sacreBLEU's tokenisation.
    """
    pairs = TextFile(pair, file).pairs()
    sources, references = ([line or "" for line in pairs[side]] for side in ("source", "target"))
    metric, scores = bleu(tokenize), {}
    with tqdm(total=len(alphas) * len(sources), desc="Translating", unit=" sentences", disable=None) as progress:
        for alpha in alphas:
            translations = translator.translate(
                sources, length_penalty=alpha, source_lang=pair[0], target_lang=pair[1], progress=progress.update
            )
            scores[alpha] = metric.corpus_score([each.text for each in translations], [references]).score
    return scores


def save(folder: Path, alpha: float) -> None:
    """Save a length penalty with the model in a folder."""
    card, settings = folder / CARD, folder / "generation_config.json"
    was_generated = card.is_file() and card.read_text("utf-8") == str(model_card(folder))
    content = {**read_json(settings), "length_penalty": alpha}
    write_whole(settings, json.dumps(content, indent=2, sort_keys=True) + "\n")
    if was_generated:
        write_card(folder)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("--validation_file", required=True, metavar="P", help="a table, or the prefix of a Moses pair")
    parser.add_argument("--alphas", type=finite, nargs="+", default=[0.6, 1.0, 1.4], help="default: 0.6 1.0 1.4")
    parser.add_argument("--bleu_tokenize", default="13a", help="sacreBLEU's tokenisation (default: 13a)")
    parser.add_argument("--source_lang", help="default: that of the model")
    parser.add_argument("--target_lang", help="default: that of the model")
    args = parser.parse_args(argv)
    try:
        check_tokenization(args.bleu_tokenize)
        folder = Path(args.model)
        if not folder.is_dir():
            raise ValueError(f"{args.model} is not a folder.")
        translator = Translator.load(args.model)
        if translator.num_hypotheses() == 1:
            print(f"{args.model} translates with greedy search, which has no length penalty.", file=sys.stderr)
            return
        source_lang, target_lang = translator.directions.resolve(args.source_lang, args.target_lang)
        if source_lang is None or target_lang is None:
            raise ValueError(f"{args.model} does not say its languages: pass --source_lang and --target_lang.")
        scores = measure(translator, (source_lang, target_lang), args.validation_file, args.alphas, args.bleu_tokenize)
        print("| alpha | BLEU |\n|---|---|")
        for alpha, score in scores.items():
            print(f"| {alpha} | {score:.2f} |")
        best = max(scores, key=lambda alpha: scores[alpha])
        save(folder, best)
        print(f"\nSaved with the model: alpha {best}")
    except (ValueError, OSError) as error:
        sys.exit(f"choose_length_penalty.py: {error}")


if __name__ == "__main__":
    main()
