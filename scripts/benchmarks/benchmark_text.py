"""The text of benchmark.py: Multi30k, or the built-in phrases."""

from pathlib import Path

from datasets import Dataset

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.cleaning import tokenize_pairs
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.inference.metrics import Bleu

ROOT = Path(__file__).parents[2]
MULTI30K_FOLDERS = (ROOT / "data" / "multi30k", ROOT.parent / "shared" / "data" / "multi30k" / "tok")
MULTI30K = next((folder for folder in MULTI30K_FOLDERS if (folder / "train.en").is_file()), MULTI30K_FOLDERS[0])


class Text:
    """Training and test text as token ids, with a tokenizer trained on it."""

    def __init__(self) -> None:
        if MULTI30K.is_dir():
            self.name = "Multi30k"
            pairs = TextFile(("en", "de"), str(MULTI30K / "train")).pairs()
            test = MULTI30K / "test_2016_flickr.en"
            self.test = test.read_text(encoding="utf-8").splitlines()
            self.references = test.with_suffix(".de").read_text(encoding="utf-8").splitlines()
        else:
            self.name = "built-in phrases"
            phrases = splits()
            pairs = Dataset.from_dict(
                {"source": [p.en for p in phrases["train"]], "target": [p.de for p in phrases["train"]]}
            )
            self.test = [p.en for p in phrases["test"]][:1000]
            self.references = [p.de for p in phrases["test"]][:1000]
        texts = [text for name in ("source", "target") for text in pairs[name] if text]
        self.tokenizer = train_tokenizer(texts, 5000)
        self.train, _ = tokenize_pairs(pairs, self.tokenizer, 256, None)
        self.sources = self.tokenizer(self.test)["input_ids"]

    def bleu(self, translations: list[str]) -> float:
        """Return the BLEU of the translations of the test text."""
        return Bleu().compute(predictions=translations, references=self.references, tokenize="none")["bleu"]
