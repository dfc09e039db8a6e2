"""Compare the tokens per target sentence of vocabularies learned here and by subword-nmt (extra: paper).

python scripts/study/tokens_per_sentence.py data/fr/train data/it/train --test data/fr/test data/it/test --moses

Each vocabulary is learned from both sides of a Moses pair, of English and one other language. The table has the
tokens per sentence of the other side of the test text. With the catalogues of Django (pip install django):

django=$(python -c "import django; print(*django.__path__)")
for language in it fr el sv uk de; do
  vanilla-transformer import $(find $django -path "*/locale/$language/LC_MESSAGES/*.po") \\
    --source_lang en --target_lang $language --output_dir data/$language
done
python scripts/study/tokens_per_sentence.py data/{it,fr,el,sv,uk,de}/train --test data/{it,fr,el,sv,uk,de}/test --moses
"""

import argparse
from pathlib import Path

from sacremoses import MosesTokenizer
from transformers import PreTrainedTokenizerBase

from hf_vanilla_transformer import train_tokenizer


def read(prefix: str, language: str, moses: bool) -> list[str]:
    """Return the lines of one side of a Moses pair, tokenised by Moses if asked for."""
    lines = Path(f"{prefix}.{language}").read_text(encoding="utf-8").splitlines()
    if not moses:
        return lines
    tokenizer = MosesTokenizer(language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def tokens_per_sentence(tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> float:
    """Return the mean number of tokens, without `</s>`."""
    return sum(len(ids) - 1 for ids in tokenizer(sentences)["input_ids"]) / len(sentences)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", nargs="+", help="prefixes of Moses pairs, such as data/fr/train")
    parser.add_argument("--test", nargs="+", required=True, help="prefix of the test text of each, in the same order")
    parser.add_argument("--vocab_size", type=int, default=4000, help="tokens of each vocabulary")
    parser.add_argument("--moses", action="store_true", help="tokenise the text by Moses first")
    args = parser.parse_args(words)

    print("| | subword-nmt | byte-level BPE | difference |\n|---|---|---|---|")
    for train, test in zip(args.train, args.test, strict=True):
        languages = [file.suffix[1:] for file in Path(train).parent.glob(f"{Path(train).name}.*")]
        (other,) = set(languages) - {"en"}
        texts = [line for language in ("en", other) for line in read(train, language, args.moses)]
        sentences = read(test, other, args.moses)
        theirs, ours = (
            tokens_per_sentence(train_tokenizer(texts, args.vocab_size, kind), sentences)
            for kind in ("subword-nmt", "bpe")
        )
        print(f"| {other} | {theirs:.2f} | {ours:.2f} | {100 * (ours / theirs - 1):+.1f} % |")


if __name__ == "__main__":
    main()
