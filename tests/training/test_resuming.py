import pytest

from hf_vanilla_transformer.training.recipes import read_recipe, recorded_settings, write_settings
from hf_vanilla_transformer.training.run import check_same_run


def resumes(settings, folder) -> bool:
    return check_same_run(recorded_settings(folder), settings, folder)


SETTINGS = {"d_model": 32, "learning_rate": 1.0, "max_steps": 5, "lr_scheduler_type": "noam", "save_steps": 1}


def test_written_settings_are_a_recipe(tmp_path):
    write_settings({"learning_rate": 1e-9, "report_to": ["a", "b"], "bf16": False}, str(tmp_path / "run"), "head")
    flags = read_recipe(str(tmp_path / "run" / "settings.yaml"), {"learning_rate", "report_to", "bf16"})
    assert flags == {"learning_rate": ["1.0e-09"], "report_to": ["a", "b"], "bf16": ["false"]}


@pytest.mark.parametrize(
    "content", [b"d_model: [", b"\xff", b"- a", b"words", b"[" * 5000, b"a: {b: 1}", b"a: 2020-01-01"]
)
def test_the_error_of_damaged_settings_names_the_file(tmp_path, content):
    write_settings(SETTINGS, str(tmp_path), "head")
    (tmp_path / "settings.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=r"settings\.yaml is damaged"):
        recorded_settings(tmp_path)


def test_settings_with_a_key_that_is_not_text_are_damaged(tmp_path):
    (tmp_path / "settings.yaml").write_text("1: 2\n")
    with pytest.raises(ValueError, match=r"settings.yaml is damaged"):
        recorded_settings(tmp_path)


def test_a_run_resumes_only_with_its_own_settings(tmp_path):
    folder = str(tmp_path)
    assert not resumes(SETTINGS, folder)
    write_settings(SETTINGS, folder, "head")
    assert resumes(SETTINGS, folder)
    assert resumes({**SETTINGS, "max_steps": 9, "save_steps": 2, "report_to": ["tensorboard"]}, folder)
    with pytest.raises(ValueError, match="holds a run with different settings: d_model was 32, now 64"):
        resumes({**SETTINGS, "d_model": 64}, folder)
    with pytest.raises(ValueError, match=r"dropout was None, now 0\.1"):
        resumes({**SETTINGS, "dropout": 0.1}, folder)
    with pytest.raises(ValueError, match=r"learning_rate was 1\.0, now None"):
        resumes({name: value for name, value in SETTINGS.items() if name != "learning_rate"}, folder)


def test_a_schedule_that_ends_fixes_the_number_of_updates(tmp_path):
    linear = {**SETTINGS, "lr_scheduler_type": "linear"}
    write_settings(linear, str(tmp_path), "head")
    with pytest.raises(ValueError, match="max_steps was 5, now 9"):
        resumes({**linear, "max_steps": 9}, str(tmp_path))


def test_a_streaming_run_needs_the_same_number_of_workers(tmp_path):
    before = {"lr_scheduler_type": "noam", "streaming": True, "dataloader_num_workers": 2}
    write_settings(before, str(tmp_path), "a run")
    assert resumes(before, str(tmp_path))
    with pytest.raises(ValueError, match="dataloader_num_workers was 2, now 3"):
        resumes({**before, "dataloader_num_workers": 3}, str(tmp_path))
    mapped = {**before, "streaming": False}
    write_settings(mapped, str(tmp_path), "a run")
    assert resumes({**mapped, "dataloader_num_workers": 3}, str(tmp_path))


def test_a_model_without_a_run_is_not_overwritten(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="already holds a model"):
        resumes(SETTINGS, str(tmp_path))


CHANGES = {
    "train_file": "other",
    "sampling_temperature": 5.0,
    "train_weights": [1.0, 3.0],
    "bpe_dropout": 0.1,
    "source_tag": "<bt>",
    "max_sentence_tokens": 100,
    "clean": False,
    "filter_language": True,
    "streaming": True,
    "seed": 1,
    "processes": 2,
}


@pytest.mark.parametrize(("name", "value"), CHANGES.items())
def test_a_run_resumes_only_with_the_batches_of_its_start(name, value, tmp_path):
    before = {**SETTINGS, "seed": 42, "processes": 1}
    write_settings(before, str(tmp_path), "a run")
    assert resumes(before, str(tmp_path))
    with pytest.raises(ValueError, match=f"{name} was "):
        resumes({**before, name: value}, str(tmp_path))


@pytest.mark.parametrize("name", ["learning_rate", "lr_scheduler_type", "weight_decay", "optim", "optim_args"])
def test_a_run_resumes_only_with_its_optimizer(name, tmp_path):
    write_settings(SETTINGS, str(tmp_path), "a run")
    with pytest.raises(ValueError, match=f"{name} was "):
        resumes({**SETTINGS, name: "changed"}, str(tmp_path))
