"""The number format of a model that translates: which one is chosen, and that translations use it."""

import io
import json

import pytest
import torch

from hf_vanilla_transformer import train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.commands.models import load_translator
from hf_vanilla_transformer.inference import precision
from hf_vanilla_transformer.inference.ensemble import Ensemble
from hf_vanilla_transformer.inference.parallel import run_in_parallel, use_threads
from hf_vanilla_transformer.inference.translator import Translator

SENTENCES = ["a dog", "the old man reads a book", "", "where do your friends live"]


@pytest.fixture
def saved(small_model, tmp_path):
    """A model saved in bfloat16, and its tokenizer, in a folder."""
    tokenizer = train_tokenizer(SENTENCES * 3, 270)
    model = small_model(vocab_size=len(tokenizer), source_lang="en", target_lang="de")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def native(monkeypatch, tmp_path):
    """A processor that multiplies bfloat16 natively, and an empty cache folder."""
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "vanilla_transformer" / "bfloat16.json"


@pytest.fixture
def ratios(native, monkeypatch):
    """A list of ratios of times: the next one is what the next measurement finds."""
    found: list[float] = []
    monkeypatch.setattr(precision, "_time_ratio", lambda *steps: found.pop(0))
    return found


class Clock:
    """A clock that only the steps of a workload advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.steps: list[torch.dtype] = []
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def step_in(self, **seconds: list[float]):
        """Return the steps, of which each takes the next of the seconds of its dtype."""

        def step_in(dtype: torch.dtype):
            times = iter(seconds[str(dtype).removeprefix("torch.")])

            def step() -> None:
                self.steps.append(dtype)
                self.now += next(times)

            return step

        return step_in


@pytest.mark.parametrize(
    ("device", "avx512", "amx", "gpu", "expected"),
    [
        ("cpu", True, False, False, True),
        ("cpu", False, True, False, True),
        ("cpu", False, False, True, False),
        ("cuda", False, False, True, True),
        ("cuda", True, True, False, False),
        ("mps", True, True, True, False),
    ],
)
def test_devices_that_multiply_bfloat16_natively(device, avx512, amx, gpu, expected, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: gpu)
    assert precision.has_native_bfloat16(torch.device(device)) == expected


@pytest.mark.parametrize(
    ("float32", "bfloat16", "steps", "expected"),
    [
        ([1.0, 0.10], [9.0, 0.05], 2, True),  # the first run of each does not count; a clear result ends at once
        ([9.0, 0.05], [1.0, 0.10], 2, False),
        ([0.1, 0.08, 0.06, 0.06], [0.1, 0.08, 0.05, 0.08], 4, True),  # the shortest times count
        ([0.1, 0.07, 0.07, 0.07], [0.1, 0.069, 0.069, 0.069], 4, False),  # too little is gained
    ],
)
def test_the_faster_format_is_measured_once(native, monkeypatch, float32, bfloat16, steps, expected):
    clock = Clock(monkeypatch)
    step_in = clock.step_in(float32=float32, bfloat16=bfloat16)
    for _ in range(2):
        assert precision.is_faster_in_bfloat16("work", torch.device("cpu"), step_in) == expected
        assert clock.steps == [torch.float32, torch.bfloat16] * steps
    other = clock.step_in(float32=[0.1] * 2, bfloat16=[0.01] * 2)
    assert precision.is_faster_in_bfloat16("other work", torch.device("cpu"), other)
    assert len(json.loads(native.read_text())) == 2


def test_nothing_is_run_where_bfloat16_is_emulated(native, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    clock = Clock(monkeypatch)
    assert not precision.is_faster_in_bfloat16("work", torch.device("cpu"), clock.step_in())
    assert clock.steps == []
    assert not native.exists()


@pytest.mark.parametrize("content", ['{"a": "b"}', "[1]", "{", "\xff"])
def test_a_damaged_cache_is_measured_again_and_replaced(native, ratios, content):
    native.parent.mkdir(parents=True)
    native.write_text(content, encoding="latin-1")
    ratios.append(0.5)
    assert precision.is_faster_in_bfloat16("work", torch.device("cpu"), lambda dtype: print)
    assert precision.is_faster_in_bfloat16("work", torch.device("cpu"), lambda dtype: print)
    assert list(json.loads(native.read_text()).values()) == [0.5]


def test_a_cache_that_cannot_be_written_does_no_harm(native, ratios):
    native.parent.parent.write_text("a file where the folder would be")
    ratios += [0.5, 2.0]
    assert precision.is_faster_in_bfloat16("work", torch.device("cpu"), lambda dtype: print)
    assert not precision.is_faster_in_bfloat16("work", torch.device("cpu"), lambda dtype: print)


@pytest.mark.parametrize("beams", [1, 3])
def test_choosing_really_translates_and_changes_neither_the_model_nor_random_numbers(native, small_model, beams):
    model = small_model()
    before, state = {name: weight.clone() for name, weight in model.state_dict().items()}, torch.get_rng_state()
    assert precision.choose_dtype(model, 4, beams) in (torch.float32, torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    (workload,) = json.loads(native.read_text())
    assert workload.startswith(f"1 x translation of 4 sentences with {beams} beams, 2 + 3 layers of width 32, ")


@pytest.mark.parametrize(("beams", "sentences"), [(1, 97), (2, 48)])
def test_a_text_of_several_batches_is_measured_with_two_searches_at_a_time(
    beams, sentences, native, small_model, monkeypatch
):
    together: list[int] = []

    def record(search, batches):
        together.append(len(batches))
        return run_in_parallel(search, batches)

    monkeypatch.setattr(precision, "run_in_parallel", record)
    with use_threads(2):
        precision.choose_dtype(small_model(), None, beams)
        assert set(together) == {2}
        assert f"2 x translation of {sentences} sentences" in native.read_text()


def test_one_search_at_a_time_is_measured_where_translating_runs_one(native, ratios, small_model):
    ratios += [0.5] * 6
    sampling = small_model()
    sampling.generation_config.do_sample = True
    with use_threads(2):
        precision.choose_dtype(small_model(), 1)
        # whole batches of sentences of 14 tokens
        precision.choose_dtype(small_model(), 292, 1)
        precision.choose_dtype(small_model(), 146, 3)
        precision.choose_dtype(small_model(), None, 4, do_sample=True)
        precision.choose_dtype(Ensemble([small_model(), small_model()]), 1000)
        precision.choose_dtype(sampling, 1000, 2)
    assert ratios == []
    assert all(workload.startswith("1 x translation") for workload in json.loads(native.read_text()))


def test_translating_with_auto_asks_a_copy_in_evaluation_mode(ratios, small_model, monkeypatch):
    asked: list[bool] = []

    def choose(model, *arguments):
        asked.append(any(module.training for module in model.modules()))
        return torch.float32

    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.choose_dtype", choose)
    tokenizer = train_tokenizer(SENTENCES * 3, 270)
    model = small_model(vocab_size=len(tokenizer)).train()
    translate(model, tokenizer, SENTENCES, dtype="auto")
    assert asked == [False]
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_beams": 3}, (len(SENTENCES), 3, None)),
        ({"do_sample": True}, (len(SENTENCES), None, True)),
        # texts that are split have any number of sentences
        ({"split_sentences": True}, (None, None, None)),
    ],
)
def test_translating_with_auto_measures_its_own_search(settings, expected, small_model, monkeypatch):
    asked: list[tuple] = []

    def choose(model, *arguments):
        asked.append(arguments)
        return torch.float32

    monkeypatch.setattr("hf_vanilla_transformer.inference.translator.choose_dtype", choose)
    tokenizer = train_tokenizer(SENTENCES * 3, 270)
    translate(small_model(vocab_size=len(tokenizer)), tokenizer, SENTENCES, dtype="auto", **settings)
    assert asked == [expected]


def test_fewer_sentences_are_measured_for_larger_models(ratios, native, small_model, monkeypatch):
    monkeypatch.setattr(precision, "OPERATIONS", 3 * 2 * small_model().num_parameters() * (14 + 10))
    ratios += [1.0]
    precision.choose_dtype(small_model(), 32, 1)
    assert "translation of 3 sentences" in native.read_text()


def test_an_unknown_dtype_is_rejected_with_the_known_ones(small_model):
    with pytest.raises(ValueError, match="Unknown dtype 'int4'; choose one of float32, bfloat16"):
        translate(small_model(), train_tokenizer([""], 260), ["a"], dtype="int4")


@pytest.mark.parametrize(("flag", "expected"), [(None, torch.float32), ("bfloat16", torch.bfloat16)])
def test_commands_load_float32_unless_told_otherwise(saved, flag, expected):
    assert load_translator([saved], dtype=flag).model.dtype == expected
    ensemble = load_translator([saved, saved], dtype=flag).model
    assert {parameter.dtype for parameter in ensemble.parameters()} == {expected}


@pytest.mark.parametrize(("ratio", "expected"), [(0.5, "bfloat16"), (2.0, "float32")])
def test_auto_is_the_faster_one_for_models_ensembles_and_translate(
    saved, ratios, monkeypatch, capsys, ratio, expected
):
    ratios += [ratio, ratio, ratio]
    translator = load_translator([saved], dtype="auto")
    assert translator.dtype == expected
    assert f"--dtype auto: {saved} translates in {expected}" in capsys.readouterr().err
    assert load_translator([saved, saved], dtype="auto").dtype == expected
    assert len(ratios) == 1
    used = []
    monkeypatch.setattr(Translator, "translate", lambda self, texts, **settings: used.append(self.dtype) or [])
    translate(load_translator([saved]).model, translator.tokenizer, ["a dog"], dtype="auto")
    assert used == [expected]
    assert ratios == []


def test_translations_in_bfloat16_are_those_of_a_bfloat16_model_which_stays_unchanged(saved):
    plain = load_translator([saved])
    model, tokenizer = plain.model, plain.tokenizer
    expected = translate(load_translator([saved], dtype="bfloat16").model, tokenizer, SENTENCES)
    assert translate(model, tokenizer, SENTENCES, dtype="bfloat16") == expected
    assert model.dtype == torch.float32


def test_the_command_translates_in_the_given_dtype(saved, monkeypatch, capsys):
    translator = load_translator([saved], dtype="bfloat16")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(SENTENCES).encode())))
    assert main(["translate", saved, "--dtype", "bfloat16"]) == 0
    expected = [" ".join(text.splitlines()) for text in translate(translator.model, translator.tokenizer, SENTENCES)]
    assert capsys.readouterr().out.split("\n") == [*expected, ""]


def test_a_dtype_is_rejected_for_other_backends(saved, capsys):
    assert main(["translate", saved, "--backend", "ctranslate2", "--dtype", "bfloat16"]) == 2
    assert "--dtype requires --backend torch" in capsys.readouterr().err
