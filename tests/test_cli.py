import inspect
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from hf_vanilla_transformer import cli
from hf_vanilla_transformer.cli import _one_line, find_verbs, main, parses_words
from hf_vanilla_transformer.commands import average
from hf_vanilla_transformer.data.cleaning import Cleaning
from hf_vanilla_transformer.errors import MissingExtraError, UserError, checking_settings
from hf_vanilla_transformer.files import import_extra
from hf_vanilla_transformer.training.schedule import noam

AVERAGE = ["average", "run", "--output_dir", "out"]


@pytest.mark.parametrize(
    "flags",
    [
        *(["--max_stepz", "3"], ["--max_steps", "few"], ["--max_step", "3"], ["--preset", "huge"], ["--dropout", "1"]),
        *(["--preset", "tiny", "--num_heads", "0"], ["--model_name_or_path", "m", "--dropout", "1.5"]),
        *(["--per_device_train_batch_size", "3"], ["--max_tokens", "0"], ["--length_penalty", "nan"]),
        *(["--accelerator_config", '{"foo": 1}'], ["--r_drop_alpha", "nan"], ["--max_length_ratio", "0.5"]),
        *(["--bleu_tokenize", "foo"], ["--metric_for_best_model", "chrf"], ["--save_only_model"]),
    ],
)
def test_invalid_training_flags_print_one_line_and_exit_with_status_2(flags, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["train", *flags, "--output_dir", str(tmp_path)])
    assert stop.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["fly"], ["train"], ["evaluate"], ["translate", "m", "--num_beams", "many"]]
    + [["translate", "m", "--length_penalty", number] for number in ("nan", "inf", "much")],
)
def test_incorrect_use_exits_with_status_2(arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "there is no VERB 'trian'; did you mean train?"),
        (["evalute", "model"], "there is no VERB 'evalute'; did you mean evaluate?"),
        (["fly"], "there is no VERB 'fly'; choose one of train, evaluate,"),
        (["plot", "atention"], "there is no KIND 'atention'; did you mean attention?"),
        (["translate", "m", "--num_beam", "2"], "unrecognized arguments: --num_beam 2; did you mean --num_beams?"),
        (["translate", "m", "--num-beam=2"], "unrecognized arguments: --num_beam=2; did you mean --num_beams?"),
        (
            ["train", "--output_dir", "o", "--trian_file", "x"],
            "unrecognized arguments: --trian_file x; did you mean --train_file?",
        ),
        (["translate", "m", "--frobnicate"], "unrecognized arguments: --frobnicate (--help"),
        # a required flag, which is then missing as well
        (["average", "--outputdir", "o", "m"], "unrecognized arguments: --outputdir; did you mean --output_dir?"),
        (["average", "m", "--output-dri=o"], "unrecognized arguments: --output_dri=o; did you mean --output_dir?"),
        (["translate", "m", "--helpp"], "unrecognized arguments: --helpp; did you mean --help?"),
        # before the verb
        (["--helpp"], "there is no VERB '--helpp'; choose one of train, evaluate,"),
        (["--output_dir", "o"], "there is no VERB '--output_dir'; choose one of train, evaluate,"),
    ],
)
def test_misspelt_verbs_and_flags_are_told_the_right_one(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("ratio", ["0.5", "nan"])
def test_prepare_refuses_an_impossible_ratio_before_it_looks_for_the_text(ratio, capsys, tmp_path):
    languages = ["--source_lang", "en", "--target_lang", "de"]
    assert main(["prepare", "nowhere", *languages, "--max_length_ratio", ratio, "--output_dir", str(tmp_path)]) == 2
    assert f"max_length_ratio must be at least 1, got {ratio}" in capsys.readouterr().err


def test_the_package_runs_as_a_module():
    run = subprocess.run(
        [sys.executable, "-m", "hf_vanilla_transformer", "--help"], capture_output=True, text=True, check=True
    )
    assert all(verb in run.stdout for verb in ("train", "evaluate", "translate"))


def words_of(verb: str) -> list[str]:
    """Return the words that choose a verb, such as those of `translate.output_dir`."""
    name, _, flag = verb.partition(".")
    return [name, *([f"--{flag}", "html"] if flag else [])]


@pytest.mark.parametrize("verb", find_verbs())
def test_each_verb_has_help_that_fits_a_terminal(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*words_of(verb), "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert f"vanilla-transformer {words_of(verb)[0]}" in text
    assert verb.partition(".")[2] in text
    assert max(map(len, text.splitlines())) <= 119
    if verb in ("train", "tune"):
        assert "--no_clean                      Turn off --clean." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "tiny", "--train_file", "nowhere/text"], "There is no file nowhere/text.en"),
        (["train", "--target_lang", "fr"], "The built-in phrases are English and German"),
        (["translate", "nowhere/model"], "nowhere/model"),
    ],
)
def test_failures_print_one_line_to_stderr_and_exit_with_status_1(arguments, message, tmp_path, capsys):
    if arguments[0] == "train":
        arguments = [*arguments, "--output_dir", str(tmp_path / "out"), "--use_cpu"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("two\nlines", "two lines"),
        (
            "In a worker.\nOriginal Traceback (most recent call last):\n  f()\na.DataError: why\n",
            "why",
        ),
        ("Original Traceback (most recent call last):\n  f()\nMemoryError\n", "MemoryError"),
    ],
)
def test_errors_of_workers_are_reduced_to_one_line(text, line):
    assert _one_line(ValueError(text)) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied", "model/config.json"), "Permission denied: 'model/config.json'"),
        (OSError("Cannot load model: [Errno 37] No locks available"), "Cannot load model: No locks available"),
    ],
)
def test_errors_of_the_operating_system_are_printed_without_their_numbers(error, line):
    assert _one_line(error) == line


def raise_in_worker(action):
    """Call a function in another process, as corpus jobs do."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(action).result()


def refuse_ratio():
    Cleaning(max_sentence_tokens=9, max_length_ratio=0.5)


def convert_text():
    int("text")


class FailingRows:
    """Rows that cannot be read, of which a `DataLoader` asks its worker process for the first."""

    def __init__(self, read):
        self.read = read

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.read()


def fail_in_data_worker(read):
    list(DataLoader(FailingRows(read), num_workers=1))


def refuse_optimizer():
    with checking_settings():
        raise ValueError("Invalid\nbeta")


def import_missing():
    with checking_settings():
        import hf_vanilla_transformer.nowhere  # noqa: F401


@pytest.fixture
def main_with(monkeypatch):
    """A function that runs `average` with another body."""

    def run(action, *flags: str) -> int:
        def body(args: average.AverageArguments) -> None:
            action()

        monkeypatch.setattr(average, "run", body)
        return main([*AVERAGE, *flags])

    return run


@pytest.mark.parametrize(
    "action",
    [
        refuse_ratio,
        pytest.param(lambda: raise_in_worker(refuse_ratio), marks=pytest.mark.slow),
        lambda: Path("nowhere/file").read_text(),
        lambda: import_extra("nowhere", "export"),
        lambda: fail_in_data_worker(refuse_ratio),
        pytest.param(refuse_optimizer, marks=pytest.mark.slow),
        import_missing,
    ],
    ids=["a check", "a check in a worker", "a file", "an extra", "a data worker", "another package", "its extra"],
)
def test_an_error_meant_for_users_is_one_line_and_debug_adds_its_traceback(action, main_with, capsys):
    assert main_with(action) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert main_with(action, "--debug") == 1
    *before, last = capsys.readouterr().err.splitlines()
    assert last == line
    assert any(text.startswith("Traceback") for text in before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (convert_text, ValueError),
        (lambda: raise_in_worker(convert_text), ValueError),
        (lambda: fail_in_data_worker(convert_text), ValueError),
        # raised on purpose, but for programmers
        (lambda: noam(0, 512, 4000), ValueError),
        (lambda: 1 / 0, ZeroDivisionError),
        (lambda: __import__("hf_vanilla_transformer.nowhere"), ImportError),
        (lambda: {}["key"], KeyError),
        (lambda: len(3), TypeError),
    ],
)
def test_a_mistake_in_the_code_is_never_one_line(action, expected, main_with):
    with pytest.raises(expected):
        main_with(action)


def test_errors_for_users_are_those_that_docstrings_promise():
    with pytest.raises(ValueError, match="at least 1") as refused:
        refuse_ratio()
    assert type(refused.value) is UserError
    with pytest.raises(ImportError, match=r"\[export\]") as missing:
        import_extra("nowhere", "export")
    assert isinstance(missing.value, UserError)
    assert type(pickle.loads(pickle.dumps(missing.value))) is MissingExtraError


def test_debug_shows_the_traceback_of_a_wrong_use(tmp_path, capsys):
    assert main(["evaluate", "m", "--test_file", "a", "--dataset_name", "b", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    flags = ["train", "--debug", "--output_dir", str(tmp_path)]
    assert main([*flags, "--train_file", "nowhere/text", "--use_cpu"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("verb", find_verbs())
def test_every_verb_lists_debug_in_its_help(verb, capsys):
    words = [verb, "training", "--help"] if verb == "plot" else [*words_of(verb), "--help"]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    assert "--debug" in capsys.readouterr().out


@pytest.mark.parametrize("verb", find_verbs())
def test_every_verb_is_a_function_of_its_flags_or_of_words(verb):
    module = find_verbs()[verb]
    assert [*inspect.signature(module.run).parameters] == (["argv"] if parses_words(module) else ["args"])
    assert parses_words(module) == (verb in ("train", "tune"))


def test_a_file_that_is_not_text_is_named_in_one_line(tmp_path, capsys):
    (tmp_path / "keys").write_bytes(b"\x80\n")
    assert main(["serve", "nowhere", "--api_key_file", str(tmp_path / "keys")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "keys, line 1: not UTF-8 (invalid start byte at byte 0)" in line


def test_ctrl_c_in_compiled_code_that_makes_another_error_of_it_is_still_an_interrupt(main_with, capsys):
    def interrupt_as_safetensors_does() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("could not determine the shape of object type") from None

    # a shell lets programs in the background ignore the signal
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main_with(interrupt_as_safetensors_does) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err.splitlines() == ["vanilla-transformer: interrupted"]


def test_a_second_ctrl_c_while_the_program_ends_is_no_traceback():
    code = """if True:
        import atexit, signal
        from hf_vanilla_transformer import cli

        signal.signal(signal.SIGINT, signal.default_int_handler)
        atexit.register(signal.raise_signal, signal.SIGINT)
        cli._run = lambda words: words == ["train", "recipe.yaml"] and signal.raise_signal(signal.SIGINT)
        cli.run_program("train")
    """
    ended = subprocess.run([sys.executable, "-c", code, "recipe.yaml"], capture_output=True, text=True)
    assert ended.stderr.splitlines() == ["vanilla-transformer: interrupted"]
    assert ended.returncode == 130


@pytest.mark.parametrize("raises_at_once", [False, True])
def test_a_worker_that_is_found_lost_again_while_its_loss_is_explained_changes_no_message(
    raises_at_once, monkeypatch, capsys
):
    def find_lost_worker(number, frame):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    def explain(error):
        signal.raise_signal(signal.SIGCHLD)
        return "A data-loading process died."

    def run_verb(args: average.AverageArguments):
        if raises_at_once:
            # blocked until the handler is to be replaced
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            signal.raise_signal(signal.SIGCHLD)
            set_handler = signal.signal

            def unblock_and_set(signum, handler):
                if signum == signal.SIGCHLD:
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
                return set_handler(signum, handler)

            monkeypatch.setattr(signal, "signal", unblock_and_set)
        raise RuntimeError("lost")

    monkeypatch.setattr("hf_vanilla_transformer.training.failures.reason_for", explain)
    monkeypatch.setattr(average, "run", run_verb)
    before = signal.signal(signal.SIGCHLD, find_lost_worker)
    try:
        assert main(AVERAGE) == 1
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert capsys.readouterr().err == "vanilla-transformer: A data-loading process died.\n"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (RuntimeError("lost"), 1, "A data-loading process died"),
        (EOFError("lost"), 1, "A data-loading process died"),
        (BrokenPipeError(32, "lost"), 1, "A data-loading process died"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_worker_that_is_found_lost_just_before_an_error_is_reported_causes_no_traceback(
    error, status, line, monkeypatch, capsys
):
    def find_lost_worker(number, frame):
        raise RuntimeError("DataLoader worker (pid 1) is killed by signal: Killed.")

    end, ends = cli._end, []

    def find_lost_worker_and_end(*args):
        ends.append(args)
        if len(ends) == 1:
            signal.raise_signal(signal.SIGCHLD)
        return end(*args)

    def run_verb(args: average.AverageArguments):
        if status == 130:
            signal.raise_signal(signal.SIGINT)
        raise error

    monkeypatch.setattr(average, "run", run_verb)
    monkeypatch.setattr(cli, "_end", find_lost_worker_and_end)
    before = [
        signal.signal(signal.SIGCHLD, find_lost_worker),
        signal.signal(signal.SIGINT, signal.default_int_handler),
    ]
    try:
        assert main(AVERAGE) == status
    finally:
        signal.signal(signal.SIGCHLD, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert len(ends) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"vanilla-transformer: {line}")
