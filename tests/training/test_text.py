import pytest
from datasets import Dataset


def test_a_run_trains_on_a_hub_dataset(train, run_flags, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for split in ("train", "validation"):
        rows = [{"en": f"the dog {i}", "fr": f"le chien {i}"} for i in range(9)]
        (tmp_path / "set").mkdir(exist_ok=True)
        Dataset.from_dict({"translation": rows}).to_parquet(tmp_path / "set" / f"{split}.parquet")
    flags = ["--dataset_name", str(tmp_path / "set"), "--target_lang", "fr", "--vocab_size", "265"]
    run = train(*run_flags(tmp_path / "run", *flags))
    assert len(run.train_dataset) == len(run.eval_dataset) == 9
    (tmp_path / "set" / "validation.parquet").rename(tmp_path / "kept")
    assert train(*run_flags(tmp_path / "other", *flags)).eval_dataset is None
    with pytest.raises(ValueError, match="no validation split, which early stopping needs"):
        train(*run_flags(tmp_path / "third", *flags, "--early_stopping_patience", "2"))
    (tmp_path / "set" / "train.parquet").unlink()
    (tmp_path / "kept").rename(tmp_path / "set" / "validation.parquet")
    with pytest.raises(ValueError, match="has no split train; its splits are validation"):
        train(*run_flags(tmp_path / "fourth", *flags))


@pytest.mark.slow
def test_the_wmt_sample_trains_and_reports_dropped_pairs(train, run_flags, wmt_sample, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    files = ["--train_file", str(wmt_sample / "train"), "--validation_file", str(wmt_sample / "val")]
    run = train(*run_flags(tmp_path / "run", *files, "--vocab_size", "2000", "--max_steps", "50"))
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    printed = capfd.readouterr().err
    assert all(reason in printed for reason in ("1 blank side", "too long", "duplicate"))
