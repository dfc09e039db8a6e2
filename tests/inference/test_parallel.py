"""Several searches at a time: the same results, the right numbers of threads, and nothing shared that must not be."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LogitsProcessor, LogitsProcessorList

from hf_vanilla_transformer import Ensemble, VanillaTransformerForConditionalGeneration, convert, train_tokenizer
from hf_vanilla_transformer.inference import hardware
from hf_vanilla_transformer.inference import translator as module
from hf_vanilla_transformer.inference.hardware import BusyCores, is_faster_in_parallel, run_in_parallel, use_threads
from hf_vanilla_transformer.inference.translator import Translator

SOURCES = [[*[5 + i % 40, 7, 9 + i % 11][: 1 + i % 3], 3] for i in range(60)]


@pytest.fixture(autouse=True)
def two_cores():
    with use_threads(2):
        yield


@pytest.fixture
def translator(small_model) -> Translator:
    tokenizer = train_tokenizer(["a dog", "the old man reads a book"] * 3, 270)
    return Translator(small_model(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture
def parallel(monkeypatch) -> list[int]:
    """The numbers of batches that were searched in parallel."""
    found: list[int] = []

    def record(search, batches):
        found.append(len(batches))
        return run_in_parallel(search, batches)

    monkeypatch.setattr(module, "run_in_parallel", record)
    return found


@pytest.mark.parametrize(
    ("cores", "batches", "searches", "threads"),
    [(2, 4, 2, 1), (8, 16, 8, 1), (8, 4, 4, 2), (8, 3, 3, 2), (3, 2, 2, 1)],
)
def test_searches_at_a_time_share_the_cores(cores, batches, searches, threads):
    together = threading.Barrier(searches, timeout=60)

    def search(batch: int) -> tuple[int, int, bool]:
        if batch < batches - batches % searches:
            together.wait()
        return batch, torch.get_num_threads(), torch.is_inference_mode_enabled()

    with use_threads(cores):
        assert list(run_in_parallel(search, range(batches))) == [(batch, threads, True) for batch in range(batches)]
        assert torch.get_num_threads() == cores
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == cores


def test_an_exception_ends_the_rest_and_restores_the_threads():
    started = []

    def search(batch: int) -> int:
        started.append(batch)
        if batch == 0:
            raise MemoryError("none left")
        return sum(range(100_000))  # takes longer than to cancel the rest

    with pytest.raises(MemoryError, match="none left"):
        list(run_in_parallel(search, range(1000)))
    assert len(started) < 1000
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("cores", "expected"), [(1, False), (2, True), (4, True)])
def test_several_searches_at_a_time_are_for_several_cores_and_the_main_thread(cores, expected, small_model):
    model = small_model()
    with use_threads(cores):
        assert is_faster_in_parallel(model) == expected
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(is_faster_in_parallel, model).result()


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 4, "length_penalty": 1.0}])
def test_outputs_and_progress_are_those_of_one_search_at_a_time(translator, parallel, settings):
    with use_threads(1):
        expected = translator.translate_ids(SOURCES, scores=True, max_tokens=40, **settings)
    assert parallel == []
    sizes: list[int] = []
    found = translator.translate_ids(SOURCES, scores=True, max_tokens=40, progress=sizes.append, **settings)
    assert parallel == [len(sizes)]
    assert len(sizes) > 3
    assert sum(sizes) == len(SOURCES)
    assert [output.hypotheses for output in found] == [output.hypotheses for output in expected]
    scores = [torch.tensor([output.scores for output in outputs]) for outputs in (found, expected)]
    torch.testing.assert_close(*scores)


def test_a_progress_that_raises_ends_the_searches_and_restores_the_threads(translator, parallel, monkeypatch):
    started = []
    search = translator._search
    monkeypatch.setattr(translator, "_search", lambda *batch: started.append(batch) or search(*batch))

    def stop(sentences: int) -> None:
        raise InterruptedError

    # The error is held, with all local variables of the search
    with pytest.raises(InterruptedError) as error:
        translator.translate_ids(SOURCES * 20, max_tokens=40, progress=stop)
    assert torch.get_num_threads() == 2
    assert len(started) < parallel[0]
    assert error.value is not None


class _Stateful(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


@pytest.mark.parametrize(
    "settings", [{"do_sample": True, "num_beams": 1}, {"logits_processor": LogitsProcessorList([_Stateful()])}]
)
def test_what_threads_would_share_is_used_by_one_search_at_a_time(translator, parallel, settings):
    translator.translate_ids(SOURCES, max_tokens=40, max_new_tokens=5, **settings)
    assert parallel == []


class _Subclass(VanillaTransformerForConditionalGeneration):
    """May compute anything."""


def test_a_subclass_uses_all_cores_at_once(translator, parallel):
    model = _Subclass(translator.model.config).eval()
    Translator(model, translator.tokenizer).translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5)
    assert parallel == []


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_outside_the_decoder_use_all_cores_at_once(translator, parallel):
    adapters = LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=r".*model\.encoder\..*q_proj")
    model = get_peft_model(translator.model, adapters).eval()
    Translator(model, translator.tokenizer).translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5)
    assert parallel == []


def test_a_foreign_model_uses_all_cores_at_once(translator, parallel, small_model):
    model = small_model(vocab_size=translator.model.config.vocab_size, length_normalization="length")
    marian = Translator(convert.to_marian(model), translator.tokenizer)
    found = marian.translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5, num_beams=1)
    expected = Translator(model, translator.tokenizer).translate_ids(
        SOURCES[:20], max_tokens=20, max_new_tokens=5, num_beams=1
    )
    assert found == expected
    assert len(parallel) == 1  # of `expected`


def test_a_single_batch_a_hook_an_ensemble_and_autocast_use_all_cores_at_once(translator, parallel, small_model):
    translator.translate_ids(SOURCES, max_tokens=10_000, max_new_tokens=5)
    hook = translator.model.model.encoder.register_forward_hook(lambda *call: None)
    translator.translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5)
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        translator.translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5)
    ensemble = Ensemble([translator.model, small_model(vocab_size=translator.model.config.vocab_size)])
    Translator(ensemble, translator.tokenizer).translate_ids(SOURCES[:20], max_tokens=20, max_new_tokens=5)
    assert parallel == []


def test_a_search_uses_one_core_while_the_machine_is_busy(monkeypatch):
    clock = SimpleNamespace(passed=0.0, ran=0.0)
    clock.monotonic = lambda: clock.passed
    clock.thread_time = lambda: clock.ran
    monkeypatch.setattr(hardware, "time", clock)

    def threads_after(seconds: float, share: float) -> int:
        clock.passed += seconds
        clock.ran += share * seconds
        cores.adapt()
        return torch.get_num_threads()

    cores = BusyCores()
    # what passes between searches says nothing
    clock.passed += 100
    cores.begin()
    shares = [(1.0, 0.9), (0.01, 0.1), (0.2, 0.4), (0.5, 1.0), (0.6, 1.0), (1.1, 0.9), (0.2, 0.1), (1.1, 0.8)]
    assert [threads_after(*share) for share in shares] == [2, 2, 1, 1, 2, 2, 1, 1]
