from hf_vanilla_transformer.cli import main


def test_onnx_with_an_old_transformers_is_a_clear_error(save_model, tmp_path, monkeypatch, capsys):
    _, folder = save_model()
    monkeypatch.setattr("hf_vanilla_transformer.plugins.onnx.onnx_runtime.transformers.__version__", "5.22.2")
    assert main(["export", str(folder), str(tmp_path / "onnx"), "--format", "onnx"]) == 1
    assert "ONNX needs transformers 5.23 or newer, but 5.22.2 is installed." in capsys.readouterr().err
    assert not (tmp_path / "onnx").exists()
