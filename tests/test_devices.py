"""Models on the GPU compute what they compute on the CPU. Without a GPU, most of these tests run on the CPU.

The GPU's kernels are not all deterministic and sum in another order, hence the tolerances.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from golden_run import golden_losses, recorded
from search_models import translate_ids, with_varied_lengths
from transformers import TrainerCallback, pipeline
from unequal_pairs import pairs

from hf_vanilla_transformer import Ensemble, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.data.batching import Seq2SeqCollator
from hf_vanilla_transformer.model import graphs_vanilla_transformer as graphs

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SOURCES = [[5 + i, 6, 7 + i % 3, *range(8, 8 + i), 2] for i in range(9)]
needs_gpu = pytest.mark.skipif(DEVICE.type == "cpu", reason="there is no GPU")


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    """Eight pairs of different lengths, on the CPU."""
    return Seq2SeqCollator(0, 1)(
        list(pairs([(9, 16), (16, 9), (10, 14), (12, 12), (1, 15), (15, 1), (14, 10), (3, 3)]))
    )


def on_device(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.to(DEVICE) for name, value in batch.items()}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_logits_loss_and_gradients_equal_those_of_the_cpu(small_model, batch, attention, position_embedding):
    results = []
    for device in ("cpu", DEVICE):
        model = small_model(dropout=0.0, position_embedding=position_embedding).to(device).train()
        model.set_attn_implementation(attention if device == DEVICE else "eager")
        inputs = {name: value.to(device) for name, value in batch.items()}
        logits = model(**{name: value for name, value in inputs.items() if name != "labels"}).logits
        loss = model(**inputs, smoothing=0.1).loss
        loss.backward()
        gradients = {f"gradient of {name}": p.grad.cpu() for name, p in model.named_parameters() if p.grad is not None}
        real = batch["labels"].ne(-100)
        results.append({"logits": logits.detach().cpu()[real], "loss": loss.detach().cpu(), **gradients})
    expected, actual = results
    assert expected.keys() == actual.keys()
    assert len(expected) > 10
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_fast_search_equals_the_loop_of_transformers(small_model, batch, dtype, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True)).to(DEVICE, dtype)
    inputs = {name: value.to(DEVICE) for name, value in batch.items() if name in ("input_ids", "attention_mask")}
    fast = model.generate(**inputs, num_beams=num_beams)
    loop = model.generate(**inputs, num_beams=num_beams, return_dict_in_generate=True).sequences
    assert fast.device.type == DEVICE.type
    length = max(fast.shape[1], loop.shape[1])
    fast, loop = (torch.nn.functional.pad(ids, (0, length - ids.shape[1])) for ids in (fast, loop))
    equal = (fast == loop).all(-1).sum().item()
    # rounding decides between hypotheses that are nearly as likely
    assert equal == len(fast) if dtype == torch.float32 else equal >= len(fast) - 2


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_with_cuda_graphs_equals_one_without(small_model, batch, dtype, num_beams, monkeypatch):
    monkeypatch.setattr(graphs, "POSITIONS_BEFORE_CAPTURE", 0)
    monkeypatch.setattr(graphs, "MIN_HYPOTHESES_TO_SHRINK", 1)
    model = with_varied_lengths(small_model(lm_head_bias=True)).to(DEVICE, dtype)
    inputs = {name: value.to(DEVICE) for name, value in batch.items() if name in ("input_ids", "attention_mask")}
    captured = [translate_ids(model, SOURCES), *(model.generate(**inputs, num_beams=num_beams) for _ in range(2))]
    known = graphs._graphs[model]
    assert not known.has_failed
    assert any(isinstance(value, graphs._Graph) for value in known.buckets.values())
    monkeypatch.setattr(graphs, "find_recorder", lambda device: None)
    assert captured[0] == translate_ids(model, SOURCES) or dtype != torch.float32
    expected = model.generate(**inputs, num_beams=num_beams)
    for output in captured[1:]:
        length = max(output.shape[1], expected.shape[1])
        given, plain = (torch.nn.functional.pad(ids, (0, length - ids.shape[1])) for ids in (output, expected))
        # rounding decides between hypotheses that are nearly as likely
        assert (given == plain).all(-1).sum() >= len(given) - 2 * (dtype != torch.float32)


@needs_gpu
def test_translations_scores_and_ensembles_equal_those_of_the_cpu(small_model):
    models = [
        with_varied_lengths(small_model(lm_head_bias=True, initializer_range=deviation)) for deviation in (0.1, 0.2)
    ]
    expected = [translate_ids(models[0], SOURCES), translate_ids(Ensemble(models), SOURCES)]
    for model in models:
        model.to(DEVICE)
    assert [translate_ids(models[0], SOURCES), translate_ids(Ensemble(models), SOURCES)] == expected


def test_a_model_is_loaded_onto_a_device_with_its_positions(small_model, batch, tmp_path):
    model = small_model(dropout=0.0)
    model.save_pretrained(tmp_path)
    expected = model(**batch).logits
    for device_map in (str(DEVICE), {"": str(DEVICE)}, "auto"):
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, device_map=device_map)
        assert {value.device.type for value in (*loaded.parameters(), *loaded.buffers())} == {DEVICE.type}
        torch.testing.assert_close(loaded(**on_device(batch)).logits.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_half_precision_weights_are_saved_from_a_device_and_loaded_on_the_cpu(small_model, dtype, tmp_path):
    model = small_model().to(DEVICE, dtype)
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, dtype="auto")
    assert loaded.dtype == dtype
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.cpu()), name


@needs_gpu
def test_the_pipeline_translates_on_a_device_as_on_the_cpu(save_model):
    _, folder = save_model()
    texts = ["the red house", "a small dog sees the old house"]
    expected = pipeline("translation", model=str(folder), device="cpu")(texts)
    assert pipeline("translation", model=str(folder), device=DEVICE)(texts) == expected


def test_a_thread_of_its_own_uses_the_device(small_model):
    model = with_varied_lengths(small_model(lm_head_bias=True)).to(DEVICE)
    # as in the server
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(translate_ids, model, SOURCES).result() == translate_ids(model, SOURCES)


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"ema_decay": 0.9}, {"gradient_accumulation_steps": 2}])
def test_a_run_resumes_on_the_device_with_its_random_state(small_model, trainer, tmp_path, settings):
    def train(resume: str | None = None, **changes) -> dict[str, torch.Tensor]:
        run = trainer(
            model=small_model(dropout=0.3),
            use_cpu=DEVICE.type == "cpu",
            **{"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "max_tokens": 32, **settings, **changes},
        )
        run.train(resume_from_checkpoint=resume)
        assert run.args.device.type == DEVICE.type
        return {name: value.cpu() for name, value in run.model.state_dict().items()}

    undisturbed = train()
    resumed = train(str(tmp_path / "checkpoint-4"))
    other_dropout = train(seed=5)
    for name, value in undisturbed.items():
        torch.testing.assert_close(resumed[name], value, rtol=0, atol=2e-5, msg=name)
    assert any((undisturbed[name] - other_dropout[name]).abs().max() > 1e-4 for name in undisturbed)


class NoWaits(TrainerCallback):
    """Let torch raise an error if the host waits for the GPU in updates 4 to 6; all other callbacks are included."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.cuda.set_sync_debug_mode("error" if 3 <= state.global_step < 6 else "default")

    on_train_end = on_step_begin


@needs_gpu
@pytest.mark.filterwarnings("ignore:.*[Ss]ynchronization debug mode")
@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"ema_decay": 0.9}, {"max_grad_norm": 1.0}])
def test_an_update_on_the_gpu_never_waits(trainer, settings):
    run = trainer(
        use_cpu=False,
        train_dataset=pairs([(1 + i % 9, 1 + i % 7) for i in range(200)]),  # an epoch of more than 8 updates
        **{"max_steps": 8, "max_tokens": 32, "logging_steps": 100, **settings},
    )
    run.add_callback(NoWaits())
    try:
        run.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.state.global_step == 8


@needs_gpu
def test_fused_attention_kernels_accept_the_masks(small_model, batch):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = small_model(d_model=64, dropout=0.0).to(DEVICE, torch.bfloat16)
    model.set_attn_implementation("sdpa")
    expected = model(**on_device(batch)).logits
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
        torch.testing.assert_close(model(**on_device(batch)).logits, expected, rtol=0.05, atol=0.05)


@needs_gpu
@pytest.mark.skipif(
    DEVICE.type not in recorded(),
    reason="no losses of a GPU are recorded: run `python tests/support/golden_run.py` on one and commit its file",
)
def test_a_run_on_the_gpu_has_the_recorded_losses():
    losses = golden_losses(DEVICE.type)
    expected = recorded()[DEVICE.type]
    # kernels of another GPU, or with atomic sums, round differently in float32, which training then amplifies
    assert losses[:10] == pytest.approx(expected[:10], rel=1e-4)
    assert losses == pytest.approx(expected, rel=1e-2)
