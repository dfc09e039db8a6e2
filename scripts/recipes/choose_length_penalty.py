"""Choose the length penalty with which a model has the highest BLEU on a validation text, and save it with the model.

python scripts/recipes/choose_length_penalty.py runs/multi30k-pairs --validation_file data/multi30k/val

The text is a table or the prefix of a Moses pair, as for `vanilla-transformer evaluate`; it should not be a test text.
The model's card gets the new alpha and the scores with it, unless the card was written by hand.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from hf_vanilla_transformer import Translator
from hf_vanilla_transformer.commands.evaluation_text import EvaluationText, read_text
from hf_vanilla_transformer.commands.shared_flags import TextFlags
from hf_vanilla_transformer.files import CARD, RECORD, JsonObject, read_json, write_whole
from hf_vanilla_transformer.flags import finite
from hf_vanilla_transformer.inference.metrics import check_tokenization, evaluate_translations
from hf_vanilla_transformer.sharing.card import write_card, write_record
from hf_vanilla_transformer.sharing.hub import is_written_by_hand


def measure(
    translator: Translator,
    text: EvaluationText,
    languages: tuple[str | None, str | None],
    alphas: Sequence[float],
    tokenize: str,
) -> dict[float, JsonObject]:
    """Return the scores of the translations of a text with each length penalty, as training records them.

    Args:
        languages: source and target language.
        tokenize: sacreBLEU's tokenisation.
    """
    about = {"text": "validation text", "sentences": len(text.sources), "direction": text.direction}
    source_lang, target_lang = languages
    scores = {}
    with tqdm(total=len(alphas) * len(text.sources), desc="Translating", unit=" sentences", disable=None) as progress:
        for alpha in alphas:
            translations = translator.translate(
                text.sources,
                length_penalty=alpha,
                source_lang=source_lang,
                target_lang=target_lang,
                progress=progress.update,
            )
            texts = [translation.text for translation in translations]
            scores[alpha] = {**about, **evaluate_translations(texts, text.references, tokenize)}
    return scores


def save(folder: Path, record: JsonObject, alpha: float, scores: JsonObject) -> None:
    """Save a length penalty with a model.

    Args:
        folder: the model's.
        record: of its training; empty if it has none.
        scores: those with this length penalty.
    """
    decoding = folder / "generation_config.json"
    content = {**read_json(decoding), "length_penalty": alpha}
    write_whole(decoding, json.dumps(content, indent=2, sort_keys=True) + "\n")
    if record:
        settings = {**record.get("settings", {}), "length_penalty": alpha}
        write_record(folder, {**record, "settings": settings, "scores": [scores]})
    card = folder / CARD
    if card.is_file() and is_written_by_hand(card.read_text("utf-8")):
        print(f"{card} was written by hand: change the length penalty there, too.")
    elif card.is_file():
        write_card(folder)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model")
    parser.add_argument("--validation_file", required=True, metavar="P", help="a table, or the prefix of a Moses pair")
    parser.add_argument("--alphas", type=finite, nargs="+", default=[0.6, 1.0, 1.4], help="default: 0.6 1.0 1.4")
    parser.add_argument("--bleu_tokenize", help="sacreBLEU's tokenisation (default: that of the training, or 13a)")
    parser.add_argument("--source_lang", help="default: that of the model")
    parser.add_argument("--target_lang", help="default: that of the model")
    args = parser.parse_args(argv)
    try:
        folder = Path(args.model)
        if not folder.is_dir():
            raise ValueError(f"{args.model} is not a folder.")
        record = read_json(folder / RECORD) if (folder / RECORD).is_file() else {}
        tokenize = args.bleu_tokenize or record.get("settings", {}).get("bleu_tokenize", "13a")
        check_tokenization(tokenize)
        translator = Translator.load(args.model)
        if translator.num_hypotheses() == 1:
            print(f"{args.model} translates with greedy search, which has no length penalty.", file=sys.stderr)
            return
        languages = translator.directions.resolve(args.source_lang, args.target_lang)
        text = read_text(TextFlags(), args.validation_file, languages)
        scores = measure(translator, text, languages, args.alphas, tokenize)
        print("| alpha | BLEU |\n|---|---|")
        for alpha, score in scores.items():
            print(f"| {alpha} | {score['bleu']:.2f} |")
        best = max(scores, key=lambda alpha: scores[alpha]["bleu"])
        save(folder, record, best, scores[best])
        print(f"\nSaved with the model: alpha {best}")
    except (ValueError, OSError) as error:
        sys.exit(f"choose_length_penalty.py: {error}")


if __name__ == "__main__":
    main()
