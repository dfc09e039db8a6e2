import csv
import json
from pathlib import Path

import pandas
import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from small import write_moses
from terminal import Terminal

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.commands.evaluate import EvaluateArguments, _scores_table, run
from hf_vanilla_transformer.inference.translator import Translator

COLUMNS = ["text", "line", "chrf", "source", "reference", "translation"]


def read_table(file: Path) -> list[tuple]:
    """Return the rows of a table as pandas reads them, below a header of `COLUMNS`."""
    separator = "," if file.suffix == ".csv" else "\t"
    table = pandas.read_csv(file, sep=separator, encoding="utf-8", keep_default_na=False)
    assert [*table.columns] == COLUMNS
    return [*table.itertuples(index=False, name=None)]


def test_evaluate_prints_sacrebleu_scores_as_one_json_object(saved, capsys):
    status = main(["evaluate", saved.path, "--test_file", saved.test_file, "--bleu_tokenize", "none"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0
    assert result["sentences"] == 4
    assert result["seconds"] > 0
    translations = translate(saved.model, saved.tokenizer, saved.sources)
    assert result["chrf"] == round(sacrebleu.corpus_chrf(translations, [saved.references]).score, 2)
    assert result["ter"] == round(sacrebleu.corpus_ter(translations, [saved.references]).score, 2)
    assert "tok:none" in result["signatures"]["bleu"]


def test_a_terminal_gets_a_table_of_all_texts_and_its_json_if_asked_for(saved, capsys, monkeypatch):
    command = ["evaluate", saved.path, "--test_file", saved.test_file, saved.test_file, "--error_rates", "word"]
    assert main(command) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for more in ([], ["--json"]):
        with Terminal() as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", terminal.stream)
            assert main([*command, *more]) == 0
            lines = terminal.read().splitlines()
        if more:
            found = [json.loads(line) for line in lines]
            assert [{**scores, "seconds": 0} for scores in found] == [{**scores, "seconds": 0} for scores in expected]
            continue
        titles, *rows = lines[: lines.index("")]
        assert titles.split() == ["sentences", "BLEU", "chrF", "chrF++", "TER"]
        assert [row.split() for row in rows[::2]] == [
            ["test,", "en-de", "4", *(f"{scores[name]:.2f}" for name in ("bleu", "chrf", "chrf++", "ter"))]
            for scores in expected
        ]
        assert f"word error rate {expected[0]['word_error_rate']:.2f} %" in rows[1]
        signatures = "".join(line.strip() for line in lines[lines.index("") :])
        assert all(signature in signatures for signature in expected[0]["signatures"].values())


def test_the_table_is_on_stderr_while_the_json_goes_to_a_file(saved, capsys, monkeypatch):
    with Terminal() as terminal:
        monkeypatch.setattr("sys.stderr", terminal.stream)
        assert main(["evaluate", saved.path, "--test_file", saved.test_file]) == 0
        table = terminal.read()
    scores = json.loads(capsys.readouterr().out)
    assert f"{scores['chrf++']:.2f}" in table
    assert '"chrf++"' not in table


@given(
    st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1),
    st.dictionaries(st.sampled_from(["paper_bleu", "exact_match", "symbol_error_rate"]), st.floats(0, 999.99)),
    st.floats(0, 999.99),
    st.integers(1, 10**7 - 1),
)
def test_the_table_is_at_most_79_columns_wide_and_aligned(text, more, score, count):
    scores = {"sentences": count, **dict.fromkeys(("bleu", "chrf", "chrf++", "ter"), score), **more}
    signatures = dict.fromkeys(("bleu", "chrf", "chrf++", "ter"), "nrefs:1|" * 20)
    result = {"text": text, "direction": "en-de", "signatures": signatures, "untranslated": count, **scores}
    lines = _scores_table({**result, "unseen_combinations": scores}, first=True, last=True).splitlines()
    assert max(map(len, lines)) <= 79
    titles, whole, unseen = lines[:3]
    assert len(titles) == len(whole) == len(unseen)
    columns = [titles.index(title) + len(title) for title in ("sentences", "BLEU", "TER")]
    assert whole.startswith(text[:10])
    for row in (whole, unseen):
        assert row[: columns[0]].endswith(f" {count:,}")
        assert all(row[:column].endswith(f" {score:.2f}") for column in columns[1:])


def test_error_rates_are_of_sources_and_not_of_lines(wordy_models, tmp_path, capsys):
    write_moses(tmp_path / "words", en=["a dog", "two men", "a dog"], de=["x", "y", "z"])
    command = ["evaluate", wordy_models.paths[1], "--error_rates", "char", "--test_file"]
    assert main([*command, str(tmp_path / "words")]) == 0
    assert json.loads(capsys.readouterr().out)["exact_match"] == 0
    dog, men = translate(wordy_models.two, wordy_models.tokenizer, ["a dog", "two men"])
    write_moses(tmp_path / "words", en=["a dog", "two men", "a dog"], de=["x", f"{men}!", dog])
    assert main([*command, str(tmp_path / "words")]) == 0
    rates = json.loads(capsys.readouterr().out)
    assert (rates["exact_match"], rates["word_error_rate"]) == (50, 50)
    assert rates["symbol_error_rate"] == round(100 / (len(men) + 1 + len(dog)), 2)


def test_running_out_of_memory_prints_one_line(saved, capsys, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.Translator.translate", out_of_memory)
    assert main(["evaluate", saved.path, "--test_file", saved.test_file]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vanilla-transformer: ")]
    assert len(lines) == 1
    assert "Out of memory on the GPU: use smaller batches (--max_tokens" in lines[0]


@pytest.fixture
def wordy_models(two_models):
    """The two models, of which the second translates to more than an empty text."""
    two_models.two.lm_head.bias.data[2] = -3.0
    two_models.two.save_pretrained(two_models.paths[1])
    return two_models


@pytest.mark.parametrize("name", ["table.tsv", "table.csv"])
def test_the_table_holds_each_sentence_with_its_translation_and_chrf(wordy_models, tmp_path, capsys, name):
    command = ["evaluate", wordy_models.paths[1], "--test_file", wordy_models.test_file]
    assert main([*command, "--output", str(tmp_path / name)]) == 0
    translations = translate(wordy_models.two, wordy_models.tokenizer, wordy_models.sources)
    assert all(translations)
    expected = []
    texts = zip(wordy_models.sources, wordy_models.references, translations, strict=True)
    for line, (source, reference, translation) in enumerate(texts, start=1):
        chrf = sacrebleu.sentence_chrf(translation, [reference]).score
        expected.append(("test", line, pytest.approx(chrf, abs=0.006), source, reference, translation))
    assert read_table(tmp_path / name) == expected
    # Excel takes only a file with a byte order mark for UTF-8
    assert (tmp_path / name).read_bytes().startswith(b"\xef\xbb\xbf")
    assert not [*tmp_path.glob("*.unfinished")]
    assert json.loads(capsys.readouterr().out)["sentences"] == 3


@pytest.mark.parametrize("name", ["table.tsv", "table.csv"])
def test_tabs_line_breaks_and_quotes_survive_in_the_table(two_models, tmp_path, name):
    texts = ["a\tb", "one\ntwo", "one\r\ntwo", "one\rtwo", 'a "quoted" word', '"', "a, b; c", "मैं", "  ", "\u2028x"]
    rows = [json.dumps({"en": text, "de": text[::-1]}) for text in texts]
    (tmp_path / "odd.jsonl").write_text("\n".join(rows), encoding="utf-8")
    command = [
        "evaluate",
        two_models.paths[1],
        "--test_file",
        str(tmp_path / "odd.jsonl"),
        "--output",
        str(tmp_path / name),
    ]
    assert main(command) == 0
    found = read_table(tmp_path / name)
    assert [row[3:5] for row in found] == [(text, text[::-1]) for text in texts]
    assert [row[1] for row in found] == [*range(1, len(texts) + 1)]


def test_the_worst_sentences_of_all_texts_come_first_on_request(wordy_models, tmp_path):
    files = [wordy_models.test_file, str(tmp_path / "second.jsonl")]
    rows = "".join(f'{{"en": "{source}", "de": "hund"}}\n' for source in ("a dog", "two", "men"))
    Path(files[1]).write_text(rows, encoding="utf-8")
    tables = []
    for more in ([], ["--worst_first"]):
        output = tmp_path / f"table{len(more)}.tsv"
        assert main(["evaluate", wordy_models.paths[1], "--test_file", *files, "--output", str(output), *more]) == 0
        tables.append(read_table(output))
    assert [row[:2] for row in tables[0]] == [(name, i) for name in ("test", "second.jsonl") for i in (1, 2, 3)]
    assert tables[1] == sorted(tables[0], key=lambda row: row[2])
    assert tables[1] != tables[0]


def test_what_is_wrong_with_the_table_is_said_before_any_translation(two_models, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.Translator.translate", lambda *args: 1 / 0)
    command = ["evaluate", two_models.paths[1], "--test_file", two_models.test_file]
    missing = str(tmp_path / "missing" / "table.tsv")
    assert main([*command, "--output", missing]) == 1
    assert f"Cannot write {missing}: there is no such folder." in capsys.readouterr().err
    for words, message in (
        (["--output", str(tmp_path / "table.xlsx")], "table.xlsx: the name of a table must end in .tsv or .csv"),
        (["--worst_first"], "--worst_first sorts the table of --output: give both"),
    ):
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err


def test_the_table_is_written_even_if_nobody_reads_the_scores(two_models, tmp_path, monkeypatch):
    def leave(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", leave)
    output = tmp_path / "table.tsv"
    with pytest.raises(BrokenPipeError):
        run(EvaluateArguments(model=[two_models.paths[1]], test_file=[two_models.test_file], output=str(output)))
    assert len(read_table(output)) == 3


def test_a_text_that_fails_leaves_the_table_of_those_before(two_models, tmp_path, monkeypatch):
    """A failure while a table is written leaves the old one."""
    output = tmp_path / "table.tsv"
    command = [
        "evaluate",
        two_models.paths[1],
        "--test_file",
        two_models.test_file,
        two_models.test_file,
        "--output",
        str(output),
    ]
    whole = Translator.translate

    def out_of_memory(*args, **settings):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    calls = iter([whole, out_of_memory])
    monkeypatch.setattr(Translator, "translate", lambda *args, **settings: next(calls)(*args, **settings))
    assert main(command) == 1
    before = output.read_bytes()
    assert len(read_table(output)) == 3

    monkeypatch.setattr(Translator, "translate", whole)
    monkeypatch.setattr(csv, "writer", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(command)
    assert output.read_bytes() == before
    assert not [*tmp_path.glob("*.unfinished")]
