import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import average_checkpoints, train_tokenizer
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.training.checkpoints import checkpoint_folders, find_fault, write_checksums


@pytest.fixture
def run(small_model, tmp_path):
    """A folder with three checkpoints with different weights."""
    tokenizer = train_tokenizer(["a dog runs"], 260)
    for step in (8, 9, 10):
        model = small_model(vocab_size=260)
        for parameter in model.parameters():
            parameter.data += 0.01 * step * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / f"checkpoint-{step}")
        tokenizer.save_pretrained(tmp_path / f"checkpoint-{step}")
    return tmp_path


def weights(folder) -> dict[str, torch.Tensor]:
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def test_every_weight_is_the_mean_of_the_last_checkpoints(run, tmp_path):
    assert main(["average", str(run), "--last", "2", "--output_dir", str(tmp_path / "mean")]) == 0
    mean, nine, ten = (weights(tmp_path / name) for name in ("mean", "checkpoint-9", "checkpoint-10"))
    for name in mean:
        expected = (nine[name].double() + ten[name].double()) / 2
        assert torch.equal(mean[name], expected.float())
    assert not torch.equal(nine["model.shared.weight"], ten["model.shared.weight"])
    assert AutoTokenizer.from_pretrained(tmp_path / "mean")("dog").input_ids[-1] == 2


def test_the_mean_of_one_checkpoint_is_that_checkpoint(run, tmp_path):
    average_checkpoints([run / "checkpoint-8"], tmp_path / "same")
    same, eight = weights(tmp_path / "same"), weights(run / "checkpoint-8")
    assert all(torch.equal(same[name], eight[name]) for name in eight)


def test_checkpoints_with_weights_are_listed_in_the_order_of_their_steps(run):
    (run / "checkpoint-11").mkdir()
    (run / "checkpoint-best").mkdir()
    assert [folder.name for folder in checkpoint_folders(run)] == ["checkpoint-8", "checkpoint-9", "checkpoint-10"]


def test_a_checkpoint_names_only_its_own_files(tmp_path):
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "checkpoint-1" / "checksums.json").write_text('{"../secret": ""}')
    assert "names '../secret', which is outside the folder" in find_fault(tmp_path / "checkpoint-1")


def test_every_change_to_a_checkpoint_is_detected(tmp_path):
    (tmp_path / "a").write_bytes(b"weights")
    (tmp_path / "optimizer.pt").write_bytes(b"")
    assert "was not finished" in find_fault(tmp_path)
    write_checksums(tmp_path)
    assert find_fault(tmp_path) is None
    (tmp_path / "a").write_bytes(b"weighty")
    assert find_fault(tmp_path) == "a is corrupt"
    (tmp_path / "a").unlink()
    assert find_fault(tmp_path) == "a is missing"
    for content in ("[", "3", "[3]", "null"):
        (tmp_path / "checksums.json").write_text(content)
        assert "cannot be read" in find_fault(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{", '{"step": 1}', "{" + '"x":{' * 200 + "}" * 201])
def test_a_checkpoint_whose_state_cannot_be_read_is_named(content, tmp_path):
    (tmp_path / "optimizer.pt").write_bytes(b"")
    (tmp_path / "trainer_state.json").write_text('{"global_step": 8}')
    write_checksums(tmp_path)
    assert find_fault(tmp_path) is None
    (tmp_path / "trainer_state.json").write_text(content)
    (tmp_path / "checksums.json").unlink()
    write_checksums(tmp_path)
    assert "it cannot be read (" in find_fault(tmp_path)


def test_different_models_are_rejected_and_nothing_is_written(run, small_model, tmp_path):
    small_model(vocab_size=260, d_ff=16).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="other holds a different model"):
        average_checkpoints([run / "checkpoint-8", tmp_path / "other"], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()


def test_too_few_checkpoints_are_a_clear_error(run, tmp_path, capsys):
    assert main(["average", str(run), "--last", "4", "--output_dir", str(tmp_path / "mean")]) == 1
    assert "has 3 checkpoints, fewer than 4" in capsys.readouterr().err
    with pytest.raises(FileNotFoundError, match="nowhere has no model"):
        average_checkpoints(["nowhere"], tmp_path / "mean")


def test_an_average_may_be_written_beside_the_checkpoints_of_its_run(run):
    (run / "notes.txt").write_text("mine")
    average_checkpoints(checkpoint_folders(run)[1:], run / "mean")
    assert main(["average", str(run), "--last", "2", "--output_dir", str(run)]) == 0
    expected = weights(run / "mean")
    assert all(torch.equal(weight, expected[name]) for name, weight in weights(run).items())
    assert (run / "notes.txt").read_text() == "mine"
    assert len(checkpoint_folders(run)) == 3


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_averaging_never_overwrites_a_model(run, tmp_path, capsys, name):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_text("mine")
    assert main(["average", str(run), "--last", "1", "--output_dir", str(folder)]) == 1
    assert "model is in use: choose a folder without model.safetensors and config.json" in capsys.readouterr().err
    assert [file.name for file in folder.iterdir()] == [name]
    assert (folder / name).read_text() == "mine"
