import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.utils import find_labels

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model.loss_vanilla_transformer import projected_cross_entropy, smoothed_cross_entropy
from hf_vanilla_transformer.training.two_passes import r_drop_loss, simcut_loss

PAD, VOCAB_SIZE = 3, 11


def example(dtype=torch.float64, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = shape or (3, 5)
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(*shape, VOCAB_SIZE, generator=generator, dtype=torch.float64)
    labels = torch.randint(PAD + 1, VOCAB_SIZE, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.3] = -100
    return logits.to(dtype).requires_grad_(), labels


def reference(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Compute the loss row by row with torch's cross-entropy, in float64, against the smoothed distribution."""
    total = logits.new_zeros((), dtype=torch.float64)
    for row, label in zip(logits.reshape(-1, VOCAB_SIZE).double(), labels.flatten().tolist(), strict=True):
        if label != -100:
            target = [smoothing / (VOCAB_SIZE - 1)] * VOCAB_SIZE
            target[PAD] = 0.0
            target[label] += 1 - smoothing
            total = total + F.cross_entropy(row, torch.tensor(target, dtype=torch.float64))
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(15,), (3, 5), (2, 2, 4)])
def test_value_and_gradient_match_torch_on_smoothed_targets(smoothing, shape):
    logits, labels = example(torch.float64, *shape)
    loss, expected = smoothed_cross_entropy(logits, labels, smoothing, PAD), reference(logits, labels, smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(7 * value, logits)[0] for value in (loss, expected)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_gradient_matches_finite_differences(smoothing):
    logits, labels = example()
    smoothed_cross_entropy(logits, labels, smoothing, PAD).backward()
    numerical = torch.zeros(logits.numel(), dtype=torch.float64)
    for i, step in enumerate(1e-6 * torch.eye(logits.numel(), dtype=torch.float64)):
        up, down = (logits.detach() + sign * step.view_as(logits) for sign in (1, -1))
        rise = smoothed_cross_entropy(up, labels, smoothing, PAD) - smoothed_cross_entropy(
            down, labels, smoothing, PAD
        )
        numerical[i] = rise / 2e-6
    torch.testing.assert_close(logits.grad, numerical.view_as(logits), rtol=1e-5, atol=1e-7)


def divergence(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return KL(P1 || P2), summed over the positions that are not padded, as torch computes it."""
    p, q = (torch.distributions.Categorical(logits=logits[labels != -100]) for logits in (first, second))
    return torch.distributions.kl_divergence(p, q).sum()


def r_drop_equation(first, second, labels):
    entropies = sum(reference(logits, labels, 0.1) for logits in (first, second))
    return (entropies + 5.0 * (divergence(first, second, labels) + divergence(second, first, labels)) / 2) / 2


def simcut_equation(whole, cut, labels):
    return reference(whole, labels, 0.1) + 5.0 * divergence(whole, cut, labels)


@pytest.mark.parametrize("chunk_rows", [1, 4, 15, 64])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("loss_of", "equation"), [(r_drop_loss, r_drop_equation), (simcut_loss, simcut_equation)], ids=["R-Drop", "SimCut"]
)
def test_two_passes_have_the_loss_and_gradient_of_their_equation(monkeypatch, loss_of, equation, dtype, chunk_rows):
    monkeypatch.setattr("hf_vanilla_transformer.training.two_passes.CHUNK_ROWS", chunk_rows)
    (first, labels), (second, _) = example(), example()
    logits = torch.cat((first, second.flip(0))).detach().to(dtype).requires_grad_()
    loss, _ = loss_of(logits, labels, 5.0, 0.1, PAD)
    (gradient,) = torch.autograd.grad(7 * loss, logits)
    exact = logits.detach().double().requires_grad_()
    expected = equation(*exact.chunk(2), labels)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=0.0)
    (expected_gradient,) = torch.autograd.grad(7 * expected, exact)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))


def test_a_second_backward_is_an_error():
    logits, labels = example()
    loss = smoothed_cross_entropy(logits, labels, 0.1, PAD)
    loss.backward()
    with pytest.raises(RuntimeError, match="backward"):
        loss.backward()


def test_without_smoothing_it_is_plain_cross_entropy():
    logits, labels = example(torch.float32)
    loss = smoothed_cross_entropy(logits, labels, 0.0, PAD)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_padded_positions_contribute_neither_loss_nor_gradient(smoothing):
    logits, labels = example()
    padded = labels == -100
    loss = smoothed_cross_entropy(logits, labels, smoothing, PAD)
    loss.backward()
    assert torch.equal(logits.grad[padded], torch.zeros_like(logits.grad[padded]))
    assert (logits.grad[~padded] != 0).all()
    changed = logits.detach().masked_fill(padded[..., None], 9.0)
    assert torch.equal(smoothed_cross_entropy(changed, labels, smoothing, PAD), loss.detach())


def test_the_loss_of_padding_alone_is_exactly_zero():
    logits, labels = example()
    loss = smoothed_cross_entropy(logits, torch.full_like(labels, -100), 0.1, PAD)
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()


def test_the_padding_token_gets_no_target_probability():
    logits, labels = example()
    real = labels != -100
    smoothed_cross_entropy(logits, labels, 0.1, PAD).backward()
    probabilities = logits.detach().softmax(-1)
    torch.testing.assert_close(logits.grad[real][:, PAD], probabilities[real][:, PAD])
    torch.testing.assert_close(logits.grad[real].sum(-1), torch.zeros(int(real.sum()), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_of_half_precision_logits_is_computed_in_float32(dtype):
    logits, labels = example(dtype)
    loss = smoothed_cross_entropy(logits, labels, 0.1, PAD)
    loss.backward()
    double = logits.detach().double().requires_grad_()
    expected = reference(double, labels, 0.1)
    expected.backward()
    assert loss.dtype == torch.float32
    assert logits.grad.dtype == dtype
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(logits.grad.double(), double.grad, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_stay_finite(dtype):
    logits = torch.tensor([[1e4] + [-1e4] * (VOCAB_SIZE - 1)], dtype=dtype, requires_grad=True)
    loss = smoothed_cross_entropy(logits, torch.tensor([5]), 0.1, PAD)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.fixture(params=[1, 4, 1000], ids="{} rows".format)
def chunks(request, monkeypatch):
    """Compute the loss of 15 rows in chunks of 1, 4 or 1,000 rows."""
    monkeypatch.setattr("hf_vanilla_transformer.model.loss_vanilla_transformer.CHUNK_ROWS", request.param)


def decoder_output(bias: bool, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, nn.Linear, torch.Tensor]:
    """Return states (3, 5, 7), a projection to the vocabulary, and labels (3, 5)."""
    torch.manual_seed(0)
    return (
        torch.randn(3, 5, 7, dtype=dtype, requires_grad=True),
        nn.Linear(7, VOCAB_SIZE, bias=bias, dtype=dtype),
        example()[1],
    )


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_chunks_matches_that_of_all_logits(bias, smoothing):
    states, projection, labels = decoder_output(bias)
    inputs = [states, *projection.parameters()]
    loss, _ = projected_cross_entropy(projection, states, labels, smoothing, PAD)
    expected = reference(projection(states), labels, smoothing)
    torch.testing.assert_close(loss, expected)
    gradients = (torch.autograd.grad(7 * value, inputs) for value in (loss, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


def test_a_token_may_be_forbidden_by_its_bias_where_there_is_no_smoothing():
    states, projection, _ = decoder_output(bias=True)
    projection.bias.data[5] = -torch.inf
    labels = torch.full((3, 5), 6)
    loss, cross_entropy = projected_cross_entropy(projection, states, labels, 0.0, PAD)
    expected = nn.functional.cross_entropy(projection(states).flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(cross_entropy, expected.detach())


@pytest.mark.usefixtures("chunks")
def test_under_autocast_the_loss_and_the_gradient_of_the_weights_are_float32():
    states, projection, labels = decoder_output(bias=True, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = projected_cross_entropy(projection, states, labels, 0.1, PAD)
    loss.backward()
    assert loss.dtype == states.grad.dtype == projection.weight.grad.dtype == torch.float32
    found = [states.grad, projection.weight.grad, projection.bias.grad]
    expected_loss = reference(projection(states), labels, 0.1)
    expected = torch.autograd.grad(expected_loss, [states, *projection.parameters()])
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-2, atol=0.0)
    for gradient, expected_gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(
            gradient, expected_gradient, rtol=0.0, atol=0.02 * float(expected_gradient.abs().max())
        )


@pytest.mark.usefixtures("chunks")
def test_frozen_weights_and_validation_need_no_gradients():
    states, projection, labels = decoder_output(bias=True)
    expected, _ = projected_cross_entropy(projection, states, labels, 0.1, PAD)
    with torch.no_grad():
        loss, _ = projected_cross_entropy(projection, states, labels, 0.1, PAD)
    assert torch.equal(loss, expected)
    assert not loss.requires_grad
    projection.requires_grad_(False)
    projected_cross_entropy(projection, states, labels, 0.1, PAD)[0].backward()
    assert projection.weight.grad is None
    assert states.grad.abs().sum() > 0


class LargestTensor(TorchDispatchMode):
    """Record the number of elements of the largest tensor that any operator returns, of one dtype if it is given."""

    elements = 0

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.dtype = dtype

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor) and self.dtype in (None, value.dtype):
                self.elements = max(self.elements, value.numel())
        return result


@pytest.mark.parametrize("loss_of", [r_drop_loss, simcut_loss])
def test_the_probabilities_of_two_passes_are_in_memory_for_one_chunk(monkeypatch, loss_of):
    monkeypatch.setattr("hf_vanilla_transformer.training.two_passes.CHUNK_ROWS", 4)
    logits, labels = example(torch.bfloat16, 2, 64)
    with LargestTensor(torch.float32) as wide:
        loss_of(logits, labels[:1], 5.0, 0.1, PAD)[0].backward()
    assert wide.elements == 2 * 4 * VOCAB_SIZE


def test_no_more_logits_than_one_chunk_are_in_memory(monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.model.loss_vanilla_transformer.CHUNK_ROWS", 4)
    states, projection = torch.randn(64, 7, requires_grad=True), nn.Linear(7, 100)
    labels = torch.randint(4, 100, (64,))
    with LargestTensor() as chunked:
        projected_cross_entropy(projection, states, labels, 0.1, PAD)[0].backward()
    assert chunked.elements == 100 * 7  # the weights; 4 rows have 400 logits
    with LargestTensor() as whole:
        smoothed_cross_entropy(projection(states), labels, 0.1, PAD).backward()
    assert whole.elements == 64 * 100


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_the_plain_cross_entropy_comes_with_the_loss_and_without_a_gradient(monkeypatch, smoothing):
    states, projection, labels = decoder_output(bias=True)
    logits = projection(states)
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    twice = torch.cat((logits, logits))
    _, projected = projected_cross_entropy(projection, states, labels, smoothing, PAD)
    _, dropped = r_drop_loss(twice, labels, 5.0, smoothing, PAD)
    _, cut = simcut_loss(twice, labels, 5.0, smoothing, PAD)
    for found in (projected, dropped, cut):
        torch.testing.assert_close(found, plain.detach())
        assert not found.requires_grad


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_a_projection_that_is_not_plain_is_called():
    states, projection, labels = decoder_output(bias=True, dtype=torch.float32)
    other = Doubled(7, VOCAB_SIZE)
    loss, _ = projected_cross_entropy(other, states, labels, 0.1, PAD)
    torch.testing.assert_close(loss.double(), reference(other(states), labels, 0.1))
    projection.register_forward_hook(lambda module, args, output: output + args[0].sum())
    loss, _ = projected_cross_entropy(projection, states, labels, 0.0, PAD)
    torch.testing.assert_close(loss.double(), reference(projection(states), labels, 0.0))


def test_transformers_finds_no_labels_but_the_labels():
    assert find_labels(VanillaTransformerForConditionalGeneration) == ["labels"]


def test_the_model_returns_the_smoothed_loss_without_logits(small_model):
    model, labels = small_model(), torch.tensor([[5, 6, 2], [7, 2, -100]])
    batch = {"input_ids": torch.tensor([[5, 6, 2], [8, 2, 1]]), "labels": labels}
    outputs = model(**batch, smoothing=0.1)
    assert outputs.logits is None
    expected = smoothed_cross_entropy(model(**batch).logits, labels, 0.1, model.config.pad_token_id)
    torch.testing.assert_close(outputs.loss, expected / 5)
    torch.testing.assert_close(model(**batch, smoothing=0.1, num_items_in_batch=10).loss, expected / 10)
