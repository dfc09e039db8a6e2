"""Searches with steps of fixed shapes, with a stand-in for CUDA graphs that repeats the recorded operators."""

import gc
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from host_waits import count_host_waits
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from recorded_graphs import GraphRecorder
from search_models import MODELS, with_varied_lengths

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.errors import UserError
from hf_vanilla_transformer.model import graphs_vanilla_transformer as graphs

EXAMPLES = int(os.environ.get("SEARCH_EXAMPLES", "15"))


@pytest.fixture
def recorders(monkeypatch) -> list[GraphRecorder]:
    """A list of the stand-ins that searches create, one for each model; any bucket gets a graph at once."""
    created = []

    def create(device):
        created.append(GraphRecorder(device))
        return created[-1]

    monkeypatch.setattr(graphs, "find_recorder", lambda device: create)
    monkeypatch.setattr(graphs, "POSITIONS_BEFORE_CAPTURE", 0)
    return created


def without_graphs(model, **arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "find_recorder", lambda device: None)
        return model.generate(**arguments)


def random_sources(batch: int, length: int, vocab_size: int = 50) -> dict[str, torch.Tensor]:
    mask = (torch.arange(length) < torch.randint(1, length + 1, (batch, 1))).long()
    return {"input_ids": torch.randint(4, vocab_size, (batch, length)) * mask, "attention_mask": mask}


def endless(model):
    """Let no sentence end before its limit."""
    model.lm_head.bias.data[2] = -1e4
    return model


@st.composite
def searches_of_models(draw):
    """A small random model, sources, and arguments of `generate`."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    heads = draw(st.sampled_from([1, 2, 4]))
    config = VanillaTransformerConfig(
        vocab_size=draw(st.sampled_from([20, 50, 700])),
        d_model=8 * heads,
        d_ff=32,
        num_heads=heads,
        num_encoder_layers=1,
        num_decoder_layers=draw(st.integers(1, 2)),
        position_embedding=draw(st.sampled_from(["sinusoidal", "learned"])),
        attention_bias=draw(st.booleans()),
        length_normalization=draw(st.sampled_from(["gnmt", "length"])),
        initializer_range=draw(st.sampled_from([None, 0.3])),
        lm_head_bias=True,
        max_position_embeddings=80,
    )
    model = with_varied_lengths(VanillaTransformerForConditionalGeneration(config).eval())
    # some end early, some never
    model.lm_head.bias.data[2] += draw(st.sampled_from([-100.0, -1.0, 0.0, 2.0]))
    beams = draw(st.sampled_from([1, 1, 2, 3, 4, 5, 8, 64]))
    if beams == 64:
        # as many candidates as the first beam alone has
        model.resize_token_embeddings(700)
    arguments = {
        **random_sources(draw(st.integers(1, 9)), draw(st.integers(1, 12)), 20),
        "num_beams": beams,
        "eos_token_id": draw(st.sampled_from([2, 2, [2, 7]])),
    }
    if beams > 1:
        arguments["num_return_sequences"] = draw(st.sampled_from([1, beams]))
        arguments["early_stopping"] = draw(st.sampled_from([False, True, "never"]))
        arguments["length_penalty"] = draw(st.sampled_from([-0.5, 0.0, 0.6, 1.0, 2.0]))
    # the limit of each sentence, or one for all
    if draw(st.booleans()):
        arguments["max_new_tokens"] = draw(st.integers(1, 20))
    if draw(st.booleans()):
        arguments["bad_words_ids"] = [[token] for token in draw(st.sets(st.integers(3, 10), min_size=1))]
    if draw(st.booleans()):
        arguments["forced_eos_token_id"] = 2
    if draw(st.booleans()):
        arguments["renormalize_logits"] = True
    return model, arguments


def n_best_lists(output, batch: int) -> list[list[tuple[tuple, float]]]:
    """Return the hypotheses of each sentence, with their scores; a forced end may make some of them equal."""
    hypotheses = zip(map(tuple, output.sequences.tolist()), output.sequences_scores.tolist(), strict=True)
    rows, size = list(hypotheses), len(output.sequences) // batch
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def scores_of_missing(hypotheses, others) -> list[float]:
    """Return the scores of those hypotheses that another list does not hold, or not as often."""
    remaining = Counter(tokens for tokens, _ in others)
    remaining.subtract(tokens for tokens, _ in hypotheses)
    return [score for tokens, score in hypotheses if remaining[tokens] < 0]


def assert_equal(output, expected, batch: int):
    """Compare n-best lists. Of hypotheses that tie, to the rounding of their scores, either list may hold any."""
    assert output.sequences.shape == expected.sequences.shape
    torch.testing.assert_close(output.sequences_scores, expected.sequences_scores, rtol=1e-4, atol=1e-4)
    for found, others in zip(n_best_lists(output, batch), n_best_lists(expected, batch), strict=True):
        # the best score of each
        scores, other_scores = (dict(reversed(rows)) for rows in (found, others))
        shared = scores.keys() & other_scores.keys()
        pairs = torch.tensor([[scores[tokens], other_scores[tokens]] for tokens in shared]).reshape(-1, 2)
        torch.testing.assert_close(pairs[:, 0], pairs[:, 1], rtol=1e-4, atol=1e-4)
        assert scores_of_missing(found, others) == pytest.approx(scores_of_missing(others, found), rel=1e-6)


@given(data=st.data())
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.filterwarnings("ignore")
def test_steps_of_fixed_shapes_find_what_the_other_loops_find(recorders, monkeypatch, data):
    """Also when sentences leave, the memory is used up, a graph is reused, and each step runs without one."""
    model, arguments = data.draw(searches_of_models())
    monkeypatch.setattr(graphs, "MIN_HYPOTHESES_TO_SHRINK", 1)
    monkeypatch.setattr(graphs, "POSITIONS_BEFORE_CAPTURE", data.draw(st.sampled_from([0, 0, 16, 10**9])))
    batch = len(arguments["input_ids"])
    scored = {**arguments, "output_sequence_scores": True}
    expected = without_graphs(model, **scored)
    # transformers' own loop
    slow = model.generate(**arguments, return_dict_in_generate=True, output_scores=True)
    if arguments["num_beams"] == 1:
        assert torch.equal(slow.sequences, expected.sequences)
    else:
        assert_equal(slow, expected, batch)
    recorders.clear()
    for _ in range(2):
        assert_equal(model.generate(**scored), expected, batch)
    assert len(recorders) == 1

    model.bfloat16()
    expected = without_graphs(model, **scored)
    assert_equal(model.generate(**scored), expected, batch)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_searches_of_one_bucket_share_a_graph(small_model, recorders, name, num_beams):
    """Whatever differs between them: sources, limits, the position of a forced end."""
    model = with_varied_lengths(small_model(lm_head_bias=True, **MODELS[name]))
    for batch, length, limit in ((11, 9, 9), (9, 12, 12), (12, 10, 16)):
        arguments = {**random_sources(batch, length), "num_beams": num_beams}
        arguments |= {"forced_eos_token_id": 2, "bad_words_ids": [[0]], "max_new_tokens": limit}
        assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
    (recorder,) = recorders
    assert recorder.captures == 1
    assert recorder.replays == 3 * 16


def test_other_settings_get_graphs_of_their_own(small_model, sources, recorders):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    variants = [
        {"early_stopping": True},
        {"early_stopping": "never"},
        {"length_penalty": 2.0},
        {"eos_token_id": [2, 8]},
        {"bad_words_ids": [[9]]},
        {"forced_eos_token_id": 5},
        {"renormalize_logits": True},
        {"num_beams": 4},
    ]
    for count, variant in enumerate([{}, *variants, *variants], 1):
        arguments = {**sources, "num_beams": 3, "max_new_tokens": 7, **variant}
        assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
        assert recorders[0].captures == min(count, 1 + len(variants))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_bucket_gets_a_graph_after_some_positions(small_model, sources, recorders, num_beams, monkeypatch):
    monkeypatch.setattr(graphs, "POSITIONS_BEFORE_CAPTURE", 16)
    model = endless(small_model(lm_head_bias=True))
    captures = []
    for positions in (5, 8, 5):
        arguments = {**sources, "num_beams": num_beams, "max_new_tokens": positions}
        assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
        captures.append(recorders[0].captures)
    assert captures == [0, 0, 1]
    # in the middle of a search
    arguments = {**sources, "num_beams": num_beams, "max_new_tokens": 60}
    assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
    # after 16 positions with a capacity of 16, 16 with 32, and 16 with 64
    assert recorders[0].captures == 2


@pytest.mark.parametrize("num_beams", [1, 4])
def test_finished_sentences_leave_for_a_smaller_bucket(small_model, recorders, num_beams, monkeypatch):
    monkeypatch.setattr(graphs, "MIN_HYPOTHESES_TO_SHRINK", 16)
    shapes = []
    find = graphs.StepGraphs._find
    monkeypatch.setattr(
        graphs.StepGraphs, "_find", lambda self, key, *rest: (shapes.append(key[1:]), find(self, key, *rest))[1]
    )
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**random_sources(45, 9), "num_beams": num_beams}
    output = model.generate(**arguments)
    assert torch.equal(output, without_graphs(model, **arguments))
    sizes = [size for size, _, _ in shapes]
    assert sizes[0] == 48
    assert sizes[-1] <= 24
    assert sizes == sorted(sizes, reverse=True)
    assert shapes[0][1:] == (12, 16)
    assert [capacity for *_, capacity in shapes] == sorted(capacity for *_, capacity in shapes)
    assert shapes[-1][2] == graphs.power_of_two(output.shape[1] - 1)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_too_few_learned_positions_are_the_error_that_they_always_are(small_model, sources, recorders, num_beams):
    model = endless(small_model(lm_head_bias=True, position_embedding="learned", max_position_embeddings=20))
    arguments = {**sources, "num_beams": num_beams, "max_new_tokens": 20}
    assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
    for generate in (model.generate, lambda **given: without_graphs(model, **given)):
        with pytest.raises(UserError, match="learned positions for 20 tokens, but the text needs 21"):
            generate(**{**arguments, "max_new_tokens": 21})


def change_a_weight(model):
    model.model.decoder.layers[1].self_attn.v_proj.weight.data.normal_(std=3.0)


def load_other_weights(model):
    model.load_state_dict({name: weight.roll(1, 0) for name, weight in model.state_dict().items()})


@pytest.mark.parametrize("change", [change_a_weight, load_other_weights])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_graph_reads_weights_that_change_in_their_place(small_model, sources, recorders, num_beams, change):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": num_beams, "max_new_tokens": 8}
    before = model.generate(**arguments)
    change(model)
    after = model.generate(**arguments)
    assert not torch.equal(after, before)
    assert torch.equal(after, without_graphs(model, **arguments))
    assert recorders[0].captures == 1


def replace_a_weight(model):
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().roll(1, 0))


MOVES = {
    "another dtype": lambda model: model.double(),
    "another dtype of a part": lambda model: model.model.double() and model.lm_head.double(),
    "other weights": replace_a_weight,
    "training": lambda model: model.train().eval(),
}


@pytest.mark.parametrize("move", MOVES)
def test_graphs_are_dropped_when_the_weights_move(small_model, sources, recorders, move):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": 3, "max_new_tokens": 8}
    model.generate(**arguments)
    MOVES[move](model)
    assert (model in graphs._graphs) == (move in ("another dtype of a part", "other weights"))
    assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
    assert [recorder.captures for recorder in recorders] == [1, 1]


def test_graphs_are_freed_with_their_model(small_model, sources, recorders):
    gc.collect()
    before = len(graphs._graphs)
    model = small_model()
    model.generate(**sources, num_beams=2, max_new_tokens=2)
    assert len(graphs._graphs) == before + 1
    gc.disable()
    try:
        del model
        assert len(graphs._graphs) == before
    finally:
        gc.enable()


def test_the_number_and_the_memory_of_graphs_are_bounded(small_model, recorders, monkeypatch):
    model = endless(small_model(lm_head_bias=True))

    def captures(batch: int) -> int:
        before = recorders[0].captures if recorders else 0
        arguments = {**random_sources(batch, 8), "num_beams": 2, "max_new_tokens": 8}
        assert torch.equal(model.generate(**arguments), without_graphs(model, **arguments))
        return recorders[0].captures - before

    monkeypatch.setattr(graphs, "MAX_BUCKETS", 2)
    # the third replaces the one that has not been used for the longest time
    assert [captures(batch) for batch in (4, 8, 4, 16, 4, 8)] == [1, 1, 0, 1, 0, 1]
    (known,) = (value for owner, value in graphs._graphs.items() if owner is model)
    monkeypatch.setattr(graphs, "MAX_BUCKETS", 99)
    recorders[0].memory = 2.5 * max(graph.memory for graph in known.buckets.values())
    assert [captures(batch) for batch in (8, 4, 8, 16, 16, 8, 32)] == [0, 0, 0, 1, 0, 1, 0]
    assert sum(graph.memory for graph in known.buckets.values()) <= recorders[0].memory


def test_a_failed_capture_warns_once_and_the_searches_run_without(small_model, sources, recorders, caplog):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": 3}
    expected = without_graphs(model, **arguments)
    model.generate(**arguments, max_new_tokens=8)
    recorders[0].fails = True
    for _ in range(3):
        assert torch.equal(model.generate(**arguments), expected)
    assert [recorder.captures for recorder in recorders] == [2]
    (record,) = caplog.records
    assert "Cannot capture the search as a CUDA graph, so it runs without one" in record.message


def test_a_capture_fails_where_the_host_reads_a_value():
    value = torch.ones(3)
    for step in (lambda: value.sum().item(), lambda: bool(value.any()), lambda: value[value > 0]):
        with pytest.raises(RuntimeError, match="capturing"):
            GraphRecorder(value.device).capture(step)


def test_autocast_runs_without_graphs(small_model, sources, recorders):
    model = small_model()
    with torch.autocast("cpu", torch.bfloat16):
        model.generate(**sources, num_beams=2, max_new_tokens=4)
    assert recorders == []


def test_a_search_within_another_and_one_in_another_thread_run_without_graphs(small_model, sources, recorders):
    model = with_varied_lengths(small_model(lm_head_bias=True))
    arguments = {**sources, "num_beams": 3, "max_new_tokens": 12}
    expected = without_graphs(model, **arguments)
    others, steps = [], []

    def search_again():
        steps.append(1)
        if len(steps) == 5:
            others.append(model.generate(**arguments))
            with ThreadPoolExecutor(1) as thread:
                others.append(thread.submit(model.generate, **arguments).result())

    model.before_step = search_again
    assert torch.equal(model.generate(**arguments), expected)
    assert len(others) == 2
    assert all(torch.equal(other, expected) for other in others)
    assert recorders[0].replays == 16


def test_a_graph_serves_searches_in_inference_mode_and_outside_of_it(small_model, sources, recorders):
    model = with_varied_lengths(small_model(lm_head_bias=True, attention_bias=True))
    arguments = {**sources, "num_beams": 3, "max_new_tokens": 30}
    expected = without_graphs(model, **arguments)
    for _ in range(2):
        with torch.inference_mode():
            assert torch.equal(model.generate(**arguments), expected)
        output = model.generate(**arguments)
        assert not output.is_inference()
        assert torch.equal(output, expected)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_host_asks_the_device_only_every_few_positions(small_model, sources, recorders, num_beams):
    model = endless(small_model(lm_head_bias=True))

    def waits(positions: int) -> int:
        arguments = {**sources, "num_beams": num_beams, "max_new_tokens": positions}
        model.generate(**arguments)
        return count_host_waits(lambda: model.generate(**arguments))

    assert waits(24) - waits(8) == 16 // graphs.CHECK_INTERVAL


@pytest.mark.parametrize(("size", "expected"), [(1, 1), (2, 2), (3, 3), (5, 6), (7, 8), (33, 48), (48, 48), (49, 64)])
def test_buckets_are_powers_of_two_and_three_quarters_of_them(size, expected):
    assert graphs.bucket(size) == expected
