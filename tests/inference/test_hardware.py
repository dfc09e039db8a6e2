"""The number format of a model that translates: which one is chosen, and that translations use it."""

import io

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, train_tokenizer, translate
from hf_vanilla_transformer.cli import main
from hf_vanilla_transformer.commands.models import load_translator
from hf_vanilla_transformer.inference import hardware
from hf_vanilla_transformer.inference.ensemble import Ensemble
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
def native(monkeypatch):
    """A processor that multiplies bfloat16 natively."""
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: True)


@pytest.fixture
def ratios(native, monkeypatch):
    """A list of ratios of times: the next one is the result of the next measurement."""
    results: list[float] = []
    monkeypatch.setattr(hardware, "_time_ratio", lambda *steps: results.pop(0))
    return results


@pytest.fixture
def workloads(native, monkeypatch):
    """The searches of each workload that is measured: the number of sentences and of beams of each."""
    recorded: list[list[tuple[int, int]]] = []

    def generate(model, batch, num_beams, **settings):
        recorded[-1].append((len(batch), num_beams))

    def run_first(first, second, device) -> float:
        recorded.append([])
        first()
        return 1.0

    for kind in (VanillaTransformerForConditionalGeneration, Ensemble):
        monkeypatch.setattr(kind, "generate", generate)
    monkeypatch.setattr(hardware, "_time_ratio", run_first)
    return recorded


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
    assert hardware.has_native_bfloat16(torch.device(device)) == expected


@pytest.mark.parametrize(
    ("float32", "bfloat16", "steps", "expected"),
    [
        ([1.0, 0.10], [9.0, 0.05], 2, True),  # the first run of each does not count; a clear result ends at once
        ([9.0, 0.05], [1.0, 0.10], 2, False),
        ([0.1, 0.08, 0.06, 0.06], [0.1, 0.08, 0.05, 0.08], 4, True),  # the shortest times count
        ([0.1, 0.07, 0.07, 0.07], [0.1, 0.069, 0.069, 0.069], 4, False),  # too little is gained
    ],
)
def test_the_faster_format_is_measured(native, monkeypatch, float32, bfloat16, steps, expected):
    clock = Clock(monkeypatch)
    step_in = clock.step_in(float32=float32, bfloat16=bfloat16)
    assert hardware.is_faster_in_bfloat16(torch.device("cpu"), step_in) == expected
    assert clock.steps == [torch.float32, torch.bfloat16] * steps


def test_nothing_is_run_where_bfloat16_is_emulated(native, monkeypatch):
    monkeypatch.setattr("torch.cpu._is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    clock = Clock(monkeypatch)
    assert not hardware.is_faster_in_bfloat16(torch.device("cpu"), clock.step_in())
    assert clock.steps == []


@pytest.mark.parametrize("beams", [1, 3])
def test_choosing_really_translates_and_changes_neither_the_model_nor_random_numbers(native, small_model, beams):
    model = small_model()
    before, state = {name: weight.clone() for name, weight in model.state_dict().items()}, torch.get_rng_state()
    assert hardware.choose_dtype(model, 4, beams) in (torch.float32, torch.bfloat16)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_the_search_that_was_asked_for_is_measured(workloads, small_model):
    hardware.choose_dtype(small_model(), 4, 3)
    assert workloads == [[(4, 3)]]


@pytest.mark.parametrize(("beams", "sentences"), [(1, 97), (2, 48)])
def test_a_third_of_a_batch_is_measured_for_a_text_of_several(beams, sentences, workloads, small_model):
    hardware.choose_dtype(small_model(), None, beams)
    assert workloads == [[(sentences, beams)]]


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
        ({"num_beams": 3}, (len(SENTENCES), 3)),
        # texts that are split have any number of sentences
        ({"split_sentences": True}, (None, None)),
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


def test_fewer_sentences_are_measured_for_larger_models(workloads, small_model, monkeypatch):
    monkeypatch.setattr(hardware, "OPERATIONS", 3 * 2 * small_model().num_parameters() * (14 + 10))
    hardware.choose_dtype(small_model(), 32, 1)
    assert workloads == [[(3, 1)]]


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
    assert main(["translate", saved, "--backend", "ctranslate2", "--dtype", "bfloat16"]) == 1
    assert "A number format and ensembles need the backend torch" in capsys.readouterr().err
