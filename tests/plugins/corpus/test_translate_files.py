"""`translate --input_files`: content of the output, resuming, and refusals."""

import io
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from export_models import overwrite
from search_models import nbest_lists
from tokenizers.normalizers import NFKC

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.data.source import TextFile
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.inference.hardware import use_threads
from hf_vanilla_transformer.inference.translator import Translator
from hf_vanilla_transformer.plugins.corpus import corpus_translation


@pytest.fixture
def corpus(saved):
    """A function that translates the sources, twice over, into a folder, and returns the status and the folder."""
    (saved.folder / "a.txt").write_text("".join(f"{line}\n" for line in saved.sources))
    rows = [json.dumps({"en": line, "de": "?"}) for line in saved.sources]
    (saved.folder / "b.jsonl").write_text("\n".join(rows))
    files = [str(saved.folder / name) for name in ("a.txt", "b.jsonl")]

    def run(*flags: str, name: str = "out"):
        where = ["--input_files", *files, "--output_dir", str(saved.folder / name), "--workers", "1"]
        return main(["translate", saved.path, *where, "--shard_lines", "3", "--num_beams", "2", *flags])

    return run


def read_parts(folder, ending: str = "jsonl") -> list[str]:
    return [line for part in sorted(folder.glob(f"part-*.{ending}")) for line in part.read_text().split("\n")[:-1]]


def last_error(capsys) -> str:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer:")][-1]


def test_every_line_is_translated_in_order_and_can_be_read_as_pairs(saved, corpus, capsys):
    assert corpus() == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"lines": 8, "unusable_lines": 0, "problems": [], "files": 4}
    expected = [
        " ".join(text.splitlines()) for text in translate(saved.model, saved.tokenizer, saved.sources, num_beams=2)
    ]
    rows = [json.loads(line) for line in read_parts(saved.folder / "out")]
    assert rows == [{"en": source, "de": target} for source, target in zip(saved.sources, expected, strict=True)] * 2
    pairs = TextFile(("en", "de"), str(saved.folder / "out")).pairs()
    assert pairs["source"][:] == saved.sources * 2
    assert pairs["target"][:] == expected * 2


def test_scores_and_nbest_lists_are_those_of_the_translator(saved, corpus):
    assert corpus("--scores", "--nbest", "2") == 0
    expected = nbest_lists(saved.model, saved.tokenizer, saved.sources, 2, num_beams=2)
    rows = [json.loads(line) for line in read_parts(saved.folder / "out")]
    assert len(rows) == 16
    for row, hypothesis in zip(rows, [hypothesis for found in expected * 2 for hypothesis in found], strict=True):
        assert row["de"] == " ".join(hypothesis.text.splitlines())
        assert row["score"] == pytest.approx(hypothesis.score, abs=2e-5)


def test_a_job_that_resumes_keeps_the_number_format_that_auto_chose(saved, corpus, monkeypatch):
    faster = [True]
    monkeypatch.setattr("hf_vanilla_transformer.inference.hardware.is_faster_in_bfloat16", lambda *work: faster.pop())
    assert corpus("--dtype", "auto") == corpus("--dtype", "auto") == 0
    assert faster == []
    manifest = json.loads((saved.folder / "out" / "translation.json").read_text())
    assert manifest["settings"]["dtype"] == "bfloat16"
    assert corpus("--dtype", "bfloat16", name="given") == 0
    assert read_parts(saved.folder / "out") == read_parts(saved.folder / "given")


def test_auto_measures_the_search_that_the_workers_run(corpus, monkeypatch):
    measured: list[tuple[int, int]] = []

    def generate(model, batch, num_beams, **settings):
        measured.append((len(batch), num_beams))

    def measure(device, step_in) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(VanillaTransformerForConditionalGeneration, "generate", generate)
            step_in(torch.float32)()
        return False

    monkeypatch.setattr("hf_vanilla_transformer.inference.hardware.is_faster_in_bfloat16", measure)
    with use_threads(2):
        assert corpus("--dtype", "auto", "--threads", "2") == 0
    assert measured == [(48, 2)]


def test_text_output_has_one_translation_per_line(saved, corpus, capsys):
    assert corpus("--output_format", "txt") == 0
    expected = translate(saved.model, saved.tokenizer, saved.sources, num_beams=2)
    assert read_parts(saved.folder / "out", "txt") == [" ".join(text.splitlines()) for text in expected] * 2
    assert main(["evaluate", saved.path, "--test_file", str(saved.folder / "out")]) == 1
    assert "contains no sources; translate with --output_format jsonl" in last_error(capsys)


def test_sampling_is_the_same_again_and_different_between_tasks(saved, corpus):
    flags = ("--do_sample", "--seed", "7", "--num_beams", "1")
    assert corpus(*flags) == corpus(*flags, name="again") == 0
    first, again = (read_parts(saved.folder / name) for name in ("out", "again"))
    assert first == again
    assert [json.loads(line)["de"] for line in first[:4]] != [json.loads(line)["de"] for line in first[4:]]


def test_the_elements_of_an_array_write_what_one_process_writes(saved, corpus, capsys):
    assert corpus(name="whole") == 0
    for task in ("1", "0"):
        assert corpus("--tasks", "2", "--task", task) == 0
        assert ("finished when the others are" in capsys.readouterr().err) == (task == "1")
    assert read_parts(saved.folder / "out") == read_parts(saved.folder / "whole")
    assert json.loads((saved.folder / "out" / "translation.json").read_text())["whole"]


def test_only_missing_and_truncated_parts_are_translated_again(saved, corpus):
    assert corpus() == 0
    parts = sorted((saved.folder / "out").glob("part-*"))
    content = [part.read_bytes() for part in parts]
    manifest = saved.folder / "out" / "translation.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "whole": False}))
    parts[0].unlink()
    parts[2].write_bytes(content[2][:-1])
    written = {i: parts[i].stat().st_mtime_ns for i in (1, 3)}
    assert corpus() == 0
    assert [part.read_bytes() for part in parts] == content
    assert {i: parts[i].stat().st_mtime_ns for i in (1, 3)} == written


def test_checkpoints_in_the_folder_of_the_model_do_not_matter(saved, corpus):
    checkpoint = shutil.copytree(saved.folder / "model", saved.folder / "model" / "checkpoint-5")
    assert corpus() == 0
    shutil.rmtree(checkpoint)
    assert corpus() == 0


def test_a_folder_of_a_different_job_or_with_other_files_is_refused(saved, corpus, capsys):
    assert corpus() == 0
    assert corpus("--length_penalty", "1.5") == 1
    assert "different text or settings (options;" in last_error(capsys)
    with (saved.folder / "a.txt").open("a") as file:
        file.write("more\n")
    assert corpus() == 1
    assert "different text or settings (files;" in last_error(capsys)
    shutil.copytree(saved.folder / "model", saved.folder / "other")
    assert corpus(name="other") == 1
    assert "is in use: choose a new or empty folder" in last_error(capsys)
    (saved.folder / "out" / "translation.json").write_text("{")
    assert corpus() == 1
    assert "translation.json is damaged" in last_error(capsys)


@pytest.mark.parametrize("file", [2, -1])
def test_a_manifest_that_names_a_file_that_is_not_there_is_damaged(saved, corpus, capsys, file):
    assert corpus() == 0
    manifest = saved.folder / "out" / "translation.json"
    content = json.loads(manifest.read_text())
    content["spans"][0][0] = file
    manifest.write_text(json.dumps(content))
    assert corpus() == 1
    assert "translation.json is damaged; start the job again in a new folder" in last_error(capsys)


def test_a_job_knows_its_files_and_models_by_their_content(saved, corpus, capsys):
    assert corpus() == 0
    manifest = saved.folder / "out" / "translation.json"
    written = manifest.stat().st_mtime_ns
    # the same model and text under other names and of other times
    shutil.copytree(saved.folder / "model", saved.folder / "renamed", copy_function=shutil.copyfile)
    names = {"a.txt": "same.de", "b.jsonl": "same.jsonl"}
    renamed = [shutil.copyfile(saved.folder / old, saved.folder / new) for old, new in names.items()]
    command = ["translate", str(saved.folder / "renamed"), "--input_files", *map(str, renamed), "--workers", "1"]
    command += ["--output_dir", str(saved.folder / "out"), "--shard_lines", "3", "--num_beams", "2"]
    assert main(command) == 0
    assert manifest.stat().st_mtime_ns == written
    # other text of the same name, size and time
    file = saved.folder / "a.txt"
    status = file.stat()
    file.write_bytes(file.read_bytes()[::-1])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert corpus() == 1
    assert "different text or settings (files;" in last_error(capsys)


@pytest.mark.parametrize("moment", ["before a worker loads it", "while a worker loads it"])
def test_a_model_that_is_replaced_during_a_job_translates_nothing(moment, saved, corpus, capsys, monkeypatch):
    load = Translator.load

    def replace_and_load(*args):
        translator = load(*args)
        with (saved.folder / "model" / "model.safetensors").open("r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(bytes(1000))
        return translator if moment.startswith("while") else load(*args)

    # that of the worker, not the one that checks the flags
    monkeypatch.setattr(corpus_translation, "Translator", SimpleNamespace(load=replace_and_load))
    assert corpus() == 1
    assert "model has changed since this job started; restore it, or translate into" in last_error(capsys)
    assert not list((saved.folder / "out").glob("part-*"))


def test_a_model_may_be_replaced_once_it_is_loaded(saved, corpus, monkeypatch):
    assert corpus(name="undisturbed") == 0
    write = corpus_translation._Writer.write
    replaced = []

    def write_and_replace(writer, task):
        result = write(writer, task)
        if not replaced:
            replaced.append(overwrite(saved.folder / "model"))
        return result

    monkeypatch.setattr(corpus_translation._Writer, "write", write_and_replace)
    assert corpus() == 0
    assert replaced
    assert read_parts(saved.folder / "out") == read_parts(saved.folder / "undisturbed")


def test_a_text_that_changes_during_a_job_is_named_and_the_job_is_not_whole(saved, corpus, capsys, monkeypatch):
    write = corpus_translation._Writer.write

    def write_and_change(writer, task):
        with (saved.folder / "a.txt").open("a") as file:
            file.write("one more line\n")
        return write(writer, task)

    monkeypatch.setattr(corpus_translation._Writer, "write", write_and_change)
    assert corpus() == 1
    assert "a.txt has changed while it was translated; translate into a new folder." in last_error(capsys)
    assert not json.loads((saved.folder / "out" / "translation.json").read_text())["whole"]


def test_wrong_use_is_refused_before_anything_is_written(saved, corpus, capsys):
    for flags, message in (
        (("--scores", "--output_format", "txt"), "--scores requires --output_format jsonl"),
        (("--nbest", "3"), "`num_return_sequences` (3) has to be smaller or equal to `num_beams` (2)"),
        (("--nbest", "3", "--do_sample"), "`num_return_sequences` (3) has to be smaller or equal to `num_beams` (2)"),
        (("--task", "0"), "--task and --tasks belong together"),
        (("--task", "2", "--tasks", "2"), "--task must be from 0 to 1"),
        (("--ray", "auto"), "--ray cannot be combined with --workers"),
        (("--tag", "<bt>"), "This model has no tag <bt>"),
        (("--target_lang", "fr"), "This model translates into de, not into 'fr'"),
    ):
        assert corpus(*flags) in (1, 2)
        assert message in last_error(capsys)
    for words, message in (
        (["--scores", "--threads", "8"], "unrecognized arguments: --scores --threads 8"),
        (["--input_files", str(saved.folder / "a.txt")], "the following arguments are required: --output_dir"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["translate", saved.path, *words])
        assert message in capsys.readouterr().err
    assert main(["translate", saved.path, "--input_files", str(saved.folder / "none"), "--output_dir", "x"]) == 1
    assert "There is no file" in last_error(capsys)
    assert not (saved.folder / "out").exists()


def test_text_under_other_keys_is_refused_before_anything_is_written(saved, corpus, capsys):
    assert corpus() == 0
    (saved.folder / "b.jsonl").write_text('\n{"text": "a dog runs"}\n')
    assert corpus(name="other") == 1
    assert "b.jsonl, line 2: no 'en' among the keys (text)" in last_error(capsys)
    assert not (saved.folder / "other").exists()


def test_a_backend_without_scores_refuses_lists_of_translations(saved, corpus, capsys, monkeypatch):
    def refuse(*args, **settings):
        raise UserError("This runtime returns no scores.")

    monkeypatch.setattr(VanillaTransformerForConditionalGeneration, "generate", refuse)
    assert corpus("--nbest", "2") == 1
    assert "This runtime returns no scores." in last_error(capsys)
    assert not (saved.folder / "out").exists()


def test_lines_longer_than_the_positions_are_blank_and_counted(saved, corpus, capsys):
    assert corpus() == 0
    with (saved.folder / "a.txt").open("a") as file:
        file.write("a dog runs " * 100 + "\n")
    capsys.readouterr()
    assert corpus(name="long") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["unusable_lines"] == 1
    assert summary["problems"][0].startswith("a.txt, line 5: ")
    assert json.loads(read_parts(saved.folder / "long")[4]) == {"en": "", "de": ""}


def test_texts_of_which_a_sentence_is_too_long_are_blank(saved, corpus, capsys):
    (saved.folder / "a.txt").write_text("A dog runs. " + "a dog runs " * 100 + "\n")
    (saved.folder / "b.jsonl").write_text("")
    assert corpus("--split_sentences") == 0
    assert json.loads(capsys.readouterr().out)["unusable_lines"] == 1
    assert [json.loads(row) for row in read_parts(saved.folder / "out")] == [{"en": "", "de": ""}]


def test_without_their_sources_texts_keep_the_part_that_was_translated_as_on_standard_input(
    saved, corpus, capsys, monkeypatch
):
    text = "A dog runs. " + "a dog runs " * 100
    (saved.folder / "a.txt").write_text(f"{text}\n")
    (saved.folder / "b.jsonl").write_text("")
    assert corpus("--split_sentences", "--output_format", "txt") == 0
    assert json.loads(capsys.readouterr().out)["unusable_lines"] == 1
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["translate", saved.path, "--split_sentences", "--num_beams", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].strip()
    assert read_parts(saved.folder / "out", "txt") == printed


def test_lines_that_normalisation_makes_too_long_are_blank(saved, corpus, capsys):
    saved.tokenizer.backend_tokenizer.normalizer = NFKC()
    saved.tokenizer.save_pretrained(saved.folder / "model")
    line = "\ufdfa" * 19  # 57 bytes, and 342 characters when normalised
    (saved.folder / "c.txt").write_text(line + "\n")
    where = ["--input_files", str(saved.folder / "c.txt"), "--output_dir", str(saved.folder / "out"), "--workers", "1"]
    assert main(["translate", saved.path, *where]) == 0
    assert json.loads(capsys.readouterr().out)["unusable_lines"] == 1


def test_links_are_read_in_the_format_of_their_names(saved, corpus):
    (saved.folder / "blob").write_text(json.dumps({"en": "a dog runs"}) + "\n")
    (saved.folder / "link.jsonl").symlink_to(saved.folder / "blob")
    where = ["--input_files", str(saved.folder / "link.jsonl"), "--output_dir", str(saved.folder / "out")]
    assert main(["translate", saved.path, *where, "--workers", "1", "--num_beams", "1"]) == 0
    assert json.loads(read_parts(saved.folder / "out")[0])["en"] == "a dog runs"
