import sys

import pytest


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model_name_or_path", "x"], "remove --model_name_or_path"),
        (["--lr_scheduler_type", "linear"], "remove --lr_scheduler_type"),
        (["--max_steps", "-1"], "pass --max_steps"),
    ],
)
def test_unsupported_settings_are_reported(more, message, tune, flags, tmp_path, capsys):
    if "--model_name_or_path" in more:
        size = {"--vocab_size", "--d_model", "--d_ff", "--num_heads", "--num_encoder_layers", "--num_decoder_layers"}
        flags = [word for i, word in enumerate(flags) if word not in size and (i == 0 or flags[i - 1] not in size)]
    assert tune(flags, tmp_path / "study", *more) == 1
    assert message in capsys.readouterr().err


def test_without_matplotlib_nothing_is_trained(tune, flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert tune(flags, tmp_path / "study") == 1
    assert "hf-vanilla-transformer[plots]" in capsys.readouterr().err
    assert not (tmp_path / "study").exists()
