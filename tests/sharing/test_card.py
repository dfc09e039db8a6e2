"""Model cards, from the folder of a model and from scores."""

import json
import re

import pytest
import yaml
from card_contents import HUB_SCORES, RECORD, SCORES, front_matter
from clean_process import run_python
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.sharing.card import (
    CardDetails,
    benchmark_results,
    model_card,
    record_average,
    write_card,
    write_record,
)


def test_card_contains_metadata_training_record_and_scores(saved):
    folder, _ = saved
    write_record(folder, RECORD)
    card = str(model_card(folder, CardDetails("you/tiny-en-de", scores=[SCORES])))
    metadata = front_matter(card)
    assert metadata["language"] == ["en", "de"]
    assert metadata["license"] == "mit"
    assert metadata["pipeline_tag"] == "translation"
    (entry,) = metadata["model-index"]
    assert entry["name"] == "tiny-en-de"
    metrics = [metric for result in entry["results"] for metric in result["metrics"]]
    assert {(metric["type"], metric["value"]) for metric in metrics} == {
        ("bleu", 12.35),
        ("chrf", 34.5),
        ("ter", 56.7),
    }
    assert "BLEU (nrefs:1|tok:none)" in {metric["name"] for metric in metrics}
    for text in (
        "29000 sentence pairs",
        "36 minutes",
        "1 x 2 threads of a CPU",
        "max_steps: 100",
        "| 100 | 8.50 | 8.00 |",
    ):
        assert text in card
    for section in ("Intended use and limits", "Use it", "Training", "Results"):
        assert f"## {section}" in card


def test_only_scores_on_datasets_of_the_hub_are_benchmark_results(saved):
    folder, _ = saved
    write_record(folder, {**RECORD, "scores": [SCORES]})
    assert benchmark_results(folder) == ""
    whole = {**HUB_SCORES, "dataset": {**HUB_SCORES["dataset"], "config": None}}
    results = yaml.safe_load(benchmark_results(folder, CardDetails(scores=[SCORES, HUB_SCORES, whole])))
    notes = "BLEU (nrefs:1|tok:none), en-de, split test"
    assert parse_eval_result_entries(results) == [
        EvalResultEntry("someone/text", task, 12.35, notes=notes) for task in ("de-en", "default")
    ]
    [entry] = front_matter(str(model_card(folder, CardDetails(scores=[HUB_SCORES]))))["model-index"]
    [result] = entry["results"]
    assert (result["dataset"]["type"], result["dataset"]["name"]) == ("someone/text", "someone/text, test")


@pytest.mark.parametrize(
    "dataset", ["someone/text", {"id": "../text", "config": None, "split": "test"}, {"id": "someone/text"}]
)
def test_scores_with_a_damaged_dataset_are_refused(saved, dataset):
    with pytest.raises(ValueError, match="the scores are damaged"):
        benchmark_results(saved[0], CardDetails(scores=[{**HUB_SCORES, "dataset": dataset}]))


def change_languages(folder, **languages) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **languages}))


@pytest.mark.parametrize(
    ("languages", "codes", "tags", "words"),
    [
        (("en", "pt-BR"), ["en", "pt"], ["pt-BR"], "en to pt-BR"),
        (("eng_Latn", "swh_latn"), ["eng", "swh"], ["eng-Latn", "swh-Latn"], "eng_Latn to swh_latn"),
        (("zh_hans_cn", "sr@latin"), ["zh", "sr"], ["zh-Hans-CN", "sr-latin"], "zh_hans_cn to sr@latin"),
        (("EN", "de"), ["en", "de"], None, "EN to de"),
        (("en-GB", "en-US"), ["en"], ["en-GB", "en-US"], "en-GB to en-US"),
        (("Source", "Target"), None, None, None),
        (("src", "tgt"), None, None, None),
        (("en", "Kiswahili"), ["en"], None, None),
    ],
)
def test_the_card_names_languages_as_the_hub_accepts_them(saved, languages, codes, tags, words):
    folder, _ = saved
    direction = "-".join(languages)
    change_languages(folder, source_lang=languages[0], target_lang=languages[1])
    sources = [{"name": "train", "direction": direction, "pairs": 9, "dropped": {}, "tag": None, "weight": 1.0}]
    write_record(folder, {**RECORD, "sources": sources})
    card = str(model_card(folder, CardDetails(scores=[{**SCORES, "direction": direction}])))
    metadata = front_matter(card)
    assert metadata.get("language") == codes
    assert metadata.get("language_bcp47") == tags
    assert all(re.fullmatch("[a-z]{2,3}", code) for code in codes or ())
    [result] = metadata["model-index"][0]["results"]
    assert result["task"]["name"] == (f"Translation {words}" if words else "Translation")
    assert result["dataset"].get("config") == (direction if words else None)
    assert f"It translates\n{words or 'from one language to another'} and" in card
    assert f"| train | {direction if words else '-'} | 9 |" in card
    assert words or languages[1] not in card


def test_a_card_of_a_model_of_several_directions_names_each_in_its_scores(saved):
    folder, _ = saved
    change_languages(folder, source_lang=None, target_lang=None, language_pairs=["en-de", "en-pt_BR"])
    scores = [{**SCORES, "direction": direction} for direction in ("en-de", "en-pt_BR", "de-en")]
    metadata = front_matter(str(model_card(folder, CardDetails(scores=scores))))
    assert (metadata["language"], metadata["language_bcp47"]) == (["en", "de", "pt"], ["pt-BR"])
    results = metadata["model-index"][0]["results"]
    assert [result["dataset"]["config"] for result in results] == ["en-de", "en-pt_BR", "de-en"]
    both = front_matter(str(model_card(folder, CardDetails(scores=[SCORES]))))["model-index"][0]["results"]
    assert [result["task"]["name"] for result in both] == ["Translation en to de, en to pt_BR"]


def test_model_without_training_record_has_a_card(saved):
    folder, _ = saved
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert "No record of the training" in card
    assert "trained from scratch" not in card
    assert "one embedding matrix shared" in card
    assert "Not evaluated." in card
    assert "model-index" not in front_matter(card)


def test_card_names_the_base_model_and_validations_without_bleu(saved):
    folder, _ = saved
    write_record(folder, {**RECORD, "validation": [{"updates": 50, "perplexity": 9.5, "bleu": None}]})
    assert "trained from scratch" in str(model_card(folder))
    assert "| 50 | 9.50 | - |" in str(model_card(folder))
    for name, on_the_hub in (("you/base", True), ("my-model", False)):
        write_record(folder, {**RECORD, "base_model": name})
        card = str(model_card(folder))
        assert f"was fine-tuned from {name} with" in card.replace("\n", " ")
        assert front_matter(card).get("base_model") == (name if on_the_hub else None)


def test_the_record_of_an_average_has_no_scores_of_other_models(saved, tmp_path):
    folder, _ = saved
    write_record(tmp_path, {**RECORD, "scores": [SCORES]})
    record_average(tmp_path, folder, 3)
    record = json.loads((folder / "training.json").read_text())
    assert record["averaged"] == 3
    assert not {"validation", "scores"} & record.keys()
    assert "on the validation text" not in (folder / "README.md").read_text()


@pytest.mark.slow
def test_four_lines_of_code_in_the_card_translate(saved, tmp_path):
    folder, _ = saved
    write_record(folder, RECORD)
    write_card(folder)
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 4
    result = run_python(code, tmp_path / "home")
    with_the_package = f"import hf_vanilla_transformer\n{code.replace(', trust_remote_code=True', '')}"
    expected = run_python(with_the_package, tmp_path / "home2", package=True)
    assert result.stdout == expected.stdout != ""


def test_file_that_evaluate_did_not_print_is_rejected_as_scores(saved, tmp_path):
    folder, _ = saved
    for text in ("{", "[]", '{"bleu": 1}'):
        (tmp_path / "scores.json").write_text(text)
        assert main(["push", str(folder), "you/model", "--scores", str(tmp_path / "scores.json")]) == 1
