import json

from datasets import Dataset

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.phrases import splits
from hf_vanilla_transformer.training.arguments import DataArguments
from hf_vanilla_transformer.training.record import example_sentence
from hf_vanilla_transformer.training.text import TokenizedText


def test_the_record_of_a_run_reveals_no_private_text_or_paths(train, run_flags, text_flags, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "set").mkdir()
    rows = [{"en": f"the secret {i}", "fr": f"le secret {i}"} for i in range(9)]
    Dataset.from_dict({"translation": rows}).to_parquet(tmp_path / "set" / "train.parquet")
    flags = ["--dataset_name", str(tmp_path / "set"), "--target_lang", "fr", "--vocab_size", "265"]
    train(*run_flags(tmp_path / "hub", *flags, "--log_level", "info"))
    train(*run_flags(tmp_path / "files", *text_flags))
    for run in ("hub", "files"):
        for name in ("training.json", "README.md"):
            text = (tmp_path / run / name).read_text()
            assert "secret" not in text
            assert "dog" not in text
            assert str(tmp_path) not in text.replace(str(tmp_path / run), "")
        record = json.loads((tmp_path / run / "training.json").read_text())
        assert record["dataset_name"] is None
        assert record["example"] == "Hello!"
    assert json.loads((tmp_path / "hub" / "training.json").read_text())["data"] == "set"


def test_the_example_on_the_card_comes_from_a_hub_dataset_but_not_from_a_file():
    tokenizer = train_tokenizer(["the dog runs"] * 3, 270)
    rows = [{"input_ids": tokenizer(text).input_ids} for text in ("the dog " * 30, "the dog runs")]
    text = TokenizedText(tokenizer, rows)
    assert example_sentence(DataArguments(dataset_name=["somebody/text"]), text) == "the dog runs"
    assert example_sentence(DataArguments(train_file=["mine"]), text) == "Hello!"


def test_the_example_on_the_card_comes_from_the_built_in_phrases(train, run_flags, tmp_path):
    train(*run_flags(tmp_path / "run", "--vocab_size", "500", "--eval_strategy", "no", "--max_steps", "1"))
    example = json.loads((tmp_path / "run" / "training.json").read_text())["example"]
    assert example in [phrase.en for phrase in splits()["train"][:100]]
