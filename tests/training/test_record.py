import json

from datasets import Dataset


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
    assert json.loads((tmp_path / "hub" / "training.json").read_text())["data"] == "set"
