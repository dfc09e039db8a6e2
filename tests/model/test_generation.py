import itertools

import pytest
import torch
from transformers import CompileConfig, GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from hf_vanilla_transformer.model.cache_vanilla_transformer import CACHE
from hf_vanilla_transformer.model.generation_vanilla_transformer import gnmt_length_penalty


@pytest.fixture
def sources() -> dict[str, torch.Tensor]:
    input_ids = torch.randint(4, 50, (5, 9))
    attention_mask = torch.ones_like(input_ids)
    for row, length in enumerate((9, 3, 6, 1, 8)):
        attention_mask[row, length:] = 0
    return {"input_ids": input_ids * attention_mask, "attention_mask": attention_mask}


def with_varied_lengths(model, end_bias: float):
    """Make a random model never pad, and end its sentences at many lengths by making `</s>` more likely."""
    model.lm_head.bias.data[0] = -1e4
    model.lm_head.weight.data[:] *= 3
    model.lm_head.bias.data[2] += end_bias
    return model


def until_end(sequence: torch.Tensor) -> list[int]:
    """Return the tokens before `</s>` or padding; transformers pads shorter rows of a beam search with `</s>`."""
    return list(itertools.takewhile(lambda token: token not in (0, 2), sequence.tolist()))


@pytest.mark.parametrize("normalization", ["gnmt", "length"])
@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_batched_decoding_equals_one_by_one(small_model, sources, num_beams, early_stopping, normalization):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization=normalization), 3.0)
    settings = {"num_beams": num_beams, "early_stopping": early_stopping} if num_beams > 1 else {"num_beams": 1}
    together = model.generate(**sources, **settings)
    lengths = set()
    for row, length in enumerate((9, 3, 6, 1, 8)):
        alone = model.generate(input_ids=sources["input_ids"][row : row + 1, :length], **settings)
        assert until_end(alone[0]) == until_end(together[row])
        lengths.add(len(until_end(alone[0])))
    assert len(lengths) > 1


def test_each_sentence_stops_at_its_source_length_plus_50(small_model, sources):
    model = small_model(lm_head_bias=True)
    model.lm_head.bias.data[[0, 2]] = -1e4  # never generates </s> or padding
    for num_beams in (1, 3):
        output = model.generate(**sources, num_beams=num_beams)
        assert [len(until_end(row)) - 1 for row in output] == [length + 50 for length in (9, 3, 6, 1, 8)]
    model.config.max_position_embeddings = 8
    assert model.generate(**sources, num_beams=1).shape == (5, 60)


@pytest.mark.parametrize("limit", [{"max_new_tokens": 7}, {"max_length": 8}])
def test_a_limit_from_the_caller_takes_precedence(small_model, sources, limit):
    model = small_model(lm_head_bias=True)
    model.lm_head.bias.data[2] = -1e4
    assert model.generate(**sources, **limit).shape == (5, 8)
    assert model.generate(**sources, generation_config=GenerationConfig(**limit)).shape == (5, 8)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_decoding_with_a_cache_equals_decoding_without(small_model, sources, num_beams):
    """With transformers' loops without and with a cache, and with the fast search, which has its own cache."""
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    lengths = []
    model.model.decoder.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    expected = model.generate(**sources, num_beams=num_beams, use_cache=False)
    assert lengths[-1] > 5  # every step decodes the whole prefix
    lengths.clear()
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)
    assert set(lengths) == {1}  # every step decodes only the latest token
    model.model.decoder._forward_pre_hooks.clear()
    assert torch.equal(model.generate(**sources, num_beams=num_beams), expected)


@torch.no_grad()
def log_probabilities(model, source: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities (N,) of sequences (N, T) with start token, for one source, up to `</s>`."""
    logits = model(input_ids=source.expand(len(sequences), -1), decoder_input_ids=sequences[:, :-1]).logits.double()
    scores = logits.log_softmax(-1).gather(2, sequences[:, 1:, None])[..., 0]
    ended = (sequences[:, :-1] == 2).cumsum(-1) > 0
    return scores.masked_fill(ended, 0.0).sum(-1)


def log_probability(model, source: torch.Tensor, tokens: list[int]) -> float:
    return log_probabilities(model, source, torch.tensor([tokens])).item()


def test_beam_scores_are_log_probability_over_the_gnmt_penalty(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True), 3.0)
    output = model.generate(
        **sources, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True
    )
    alpha = model.generation_config.length_penalty
    assert alpha == 0.6
    for row, (sequence, score) in enumerate(zip(output.sequences, output.sequences_scores, strict=True)):
        source = sources["input_ids"][row // 4 : row // 4 + 1, : sources["attention_mask"][row // 4].sum()]
        tokens = until_end(sequence)
        tokens += [2] * (len(tokens) <= source.shape[1] + 50)  # unless the length limit has ended it
        expected = log_probability(model, source, tokens) / ((5 + len(tokens) - 1) / 6) ** alpha
        assert score.item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("longest", [3, 5])  # with the fast search, and with that of transformers
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_an_exhaustive_beam_finds_the_best_sequences(small_model, alpha, longest):
    """With a vocabulary of 8, every output of up to 5 tokens can be scored."""
    model = with_varied_lengths(
        small_model(vocab_size=8, d_model=16, d_ff=16, num_decoder_layers=1, lm_head_bias=True), 0.0
    )
    source = torch.tensor([[5, 6, 2]])
    others = (0, 1, 3, 4, 5, 6, 7)
    candidates = [[*prefix, 2] for length in range(longest) for prefix in itertools.product(others, repeat=length)]
    candidates += itertools.product(others, repeat=longest)  # ended by the length limit
    padded = torch.tensor([[1, *tokens, *[0] * (longest - len(tokens))] for tokens in candidates])
    lengths = torch.tensor([len(tokens) for tokens in candidates])
    scores = log_probabilities(model, source, padded) / ((5 + lengths) / 6) ** alpha
    best = scores.topk(10)
    settings = {"num_beams": 7 ** (longest - 1), "num_return_sequences": 10, "max_new_tokens": longest}
    settings |= {"length_penalty": alpha, "early_stopping": "never"}
    sequences = model.generate(source, **settings)
    assert [until_end(sequence) for sequence in sequences] == [until_end(padded[i]) for i in best.indices]
    output = model.generate(source, **settings, return_dict_in_generate=True, output_scores=True)
    torch.testing.assert_close(output.sequences_scores.double(), best.values, atol=1e-4, rtol=0)
    assert [until_end(sequence) for sequence in output.sequences] == [until_end(padded[i]) for i in best.indices]


def test_the_length_penalty_is_equation_14_of_wu_et_al():
    assert gnmt_length_penalty(1, 0.6) == 1.0
    assert gnmt_length_penalty(7, 0.6) == pytest.approx(2**0.6)
    assert gnmt_length_penalty(25, 0.0) == 1.0


def test_length_normalization_scores_as_transformers_does(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True, length_normalization="length"), 3.0)
    output = model.generate(
        **sources, num_beams=3, length_penalty=0.8, return_dict_in_generate=True, output_scores=True
    )
    tokens = until_end(output.sequences[0])
    tokens += [2] * (len(tokens) <= 59)
    expected = log_probability(model, sources["input_ids"][:1], tokens) / (len(tokens) - 1) ** 0.8
    assert output.sequences_scores[0].item() == pytest.approx(expected, abs=1e-4)


def test_the_papers_decoding_is_saved_with_the_model(small_model, tmp_path):
    small_model().save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert (saved.num_beams, saved.length_penalty) == (4, 0.6)
    assert (saved.decoder_start_token_id, saved.eos_token_id, saved.pad_token_id) == (1, 2, 0)


def test_embeddings_and_encoder_outputs_decode_like_token_ids(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    source = sources["input_ids"][:1]
    expected = model.generate(source)
    assert torch.equal(model.generate(encoder_outputs=model.get_encoder()(source)), expected)
    assert torch.equal(model.generate(inputs_embeds=model.get_input_embeddings()(source)), expected)


def test_n_best_outputs_are_distinct_and_sorted_by_score(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True), 3.0)
    output = model.generate(
        **sources, num_beams=6, num_return_sequences=6, return_dict_in_generate=True, output_scores=True
    )
    for row in range(5):
        best, scores = output.sequences[6 * row : 6 * row + 6], output.sequences_scores[6 * row : 6 * row + 6]
        assert len(set(map(tuple, best.tolist()))) == 6
        assert torch.equal(scores, scores.sort(descending=True).values)
    first = model.generate(**sources, num_beams=6)
    assert [until_end(sequence) for sequence in first] == [until_end(sequence) for sequence in output.sequences[::6]]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_forced_prefix_is_kept_and_continued(small_model, sources, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True), 1.0)
    prefix = torch.tensor([[1, 7, 8, 9]] * 5)
    output = model.generate(
        **sources, decoder_input_ids=prefix, num_beams=num_beams, return_dict_in_generate=True, output_scores=True
    )
    assert torch.equal(output.sequences[:, :4], prefix)
    for row, length in enumerate((9, 3, 6, 1, 8)):
        assert len(until_end(output.sequences[row])) <= 1 + length + 50
    if num_beams == 1:
        greedy = model.generate(**sources, num_beams=1)
        again = model.generate(**sources, decoder_input_ids=greedy[:, :3], num_beams=1)
        assert torch.equal(again, greedy)
    else:
        tokens = until_end(output.sequences[0])
        tokens += [2] * (len(tokens) <= 59)
        source = sources["input_ids"][:1]
        whole, given = (log_probability(model, source, part) for part in (tokens, tokens[:4]))
        expected = (whole - given) / ((5 + len(tokens) - 1) / 6) ** 0.6
        assert output.sequences_scores[0].item() == pytest.approx(expected, abs=1e-4)


def test_attention_weights_are_returned_for_every_step(small_model, sources):
    model = small_model()
    model.set_attn_implementation("eager")
    output = model.generate(
        **sources, num_beams=1, max_new_tokens=4, output_attentions=True, return_dict_in_generate=True
    )
    steps = output.sequences.shape[1] - 1
    assert len(output.cross_attentions) == len(output.decoder_attentions) == steps
    for step, layers in enumerate(output.cross_attentions):
        assert [tuple(weights.shape) for weights in layers] == [(5, 4, 1, 9)] * 3
        assert [tuple(weights.shape) for weights in output.decoder_attentions[step]] == [(5, 4, 1, step + 1)] * 3
        for weights in layers:
            torch.testing.assert_close(weights.sum(-1), torch.ones(5, 4, 1))
            assert weights[1, :, :, 3:].abs().max() == 0  # padding


def test_sampling_is_reproducible_and_respects_the_limits(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True), 0.0)

    def sample(seed: int, **settings) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.generate(**sources, do_sample=True, num_beams=1, **settings)

    assert torch.equal(sample(1), sample(1))
    assert sample(1).tolist() != sample(2).tolist()
    for row, length in enumerate((9, 3, 6, 1, 8)):
        assert len(until_end(sample(3)[row])) <= 1 + length + 50
    assert torch.equal(sample(1, top_k=1), model.generate(**sources, num_beams=1))


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_static_cache_never_changes_the_output(small_model, sources, num_beams):
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    expected = model.generate(**sources, num_beams=num_beams)
    assert torch.equal(model.generate(**sources, num_beams=num_beams, cache_implementation="static"), expected)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])  # since transformers 5.24, and before
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_generate_continues_from_a_given_cache(small_model, sources, name):
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    expected = model.generate(**sources, num_beams=1, max_new_tokens=12, min_new_tokens=12)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    model(**sources, decoder_input_ids=expected[:, :5], use_cache=True, **{name: cache})
    prefix = {"decoder_input_ids": expected[:, :6], "decoder_attention_mask": torch.ones(5, 6)}
    settings = {"num_beams": 1, "max_new_tokens": 7, "min_new_tokens": 7, name: cache}
    assert torch.equal(model.generate(**sources, **prefix, **settings), expected)
    assert cache.get_seq_length() == 12  # one token is not in the cache yet: the last


def test_generate_continues_from_a_returned_cache(small_model, sources):
    """As in `test_generate_continue_from_past_key_values` of transformers' own tests."""
    model = with_varied_lengths(small_model(lm_head_bias=True), -9.0)
    settings = {"num_beams": 1, "return_dict_in_generate": True, "output_scores": True}
    whole = model.generate(**sources, **settings, max_new_tokens=4)
    first = model.generate(**sources, **settings, max_new_tokens=3)
    given = {CACHE: first[CACHE], "decoder_input_ids": first.sequences}
    second = model.generate(**sources, **settings, **given, max_new_tokens=1)
    assert torch.equal(second.sequences, whole.sequences)
    for scores, expected in zip((*first.scores, *second.scores), whole.scores, strict=True):
        torch.testing.assert_close(scores, expected)
    for name in ("self_attention_cache", "cross_attention_cache"):
        layers = (getattr(output[CACHE], name).layers for output in (second, whole))
        for layer, expected in zip(*layers, strict=True):
            torch.testing.assert_close(layer.keys, expected.keys)
            torch.testing.assert_close(layer.values, expected.values)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("settings", [{}, {"cache_implementation": "static"}, {"return_dict_in_generate": True}])
def test_a_smaller_batch_after_a_larger_one_decodes_the_same(small_model, sources, num_beams, settings):
    """A static cache stays with the model; the next batch must not meet keys and values of the previous one."""
    expected_model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    for rows in (slice(0, 5), slice(0, 2), slice(3, 4), slice(1, 5)):
        batch = {name: tensor[rows] for name, tensor in sources.items()}
        output = model.generate(**batch, num_beams=num_beams, max_new_tokens=12, **settings)
        expected = expected_model.generate(**batch, num_beams=num_beams, max_new_tokens=12, use_cache=False)
        assert torch.equal(getattr(output, "sequences", output), expected)


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_generate_compiles_the_forward_pass_once_for_a_static_cache(small_model, sources, position_embedding):
    """As in `test_generate_compile_model_forward_fullgraph` of transformers' own tests."""
    torch.compiler.reset()
    model = with_varied_lengths(small_model(lm_head_bias=True, position_embedding=position_embedding), -9.0)
    graphs = []

    def compile_graph(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compilation = CompileConfig(fullgraph=True, backend=compile_graph, mode=None, dynamic=False)
    compilation._compile_all_devices = True  # otherwise transformers compiles only on a GPU
    settings = {"num_beams": 1, "max_new_tokens": 9}
    for seed in range(2):
        torch.manual_seed(seed)
        batch = {**sources, "input_ids": torch.randint(4, 50, (5, 9))}
        expected = model.generate(**batch, **settings)
        static = {"cache_implementation": "static", "compile_config": compilation}
        assert torch.equal(model.generate(**batch, **settings, **static), expected)
        assert len(graphs) == 1


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("settings", [{}, {"min_length": 3}])  # with the fast search, and without
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_mask_of_any_dtype_decodes_the_same(small_model, sources, num_beams, settings, dtype):
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    expected = model.generate(**sources, num_beams=num_beams, **settings)
    sources["attention_mask"] = sources["attention_mask"].to(dtype)
    assert torch.equal(model.generate(**sources, num_beams=num_beams, **settings), expected)


@torch.no_grad()
@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_a_step_with_a_static_cache_compiles_to_one_graph(small_model, sources, position_embedding):
    model = small_model(position_embedding=position_embedding)
    target = torch.randint(4, 50, (5, 5))
    expected = model(**sources, decoder_input_ids=target).logits
    caches = (StaticCache(model.config, max_cache_len=length) for length in (20, 9))
    cache = EncoderDecoderCache(*caches)
    compiled = torch.compile(model.forward, fullgraph=True, backend="eager")
    inputs = {"encoder_outputs": model.model.encoder(**sources), "attention_mask": sources["attention_mask"]}
    for position in range(5):
        forward = compiled if position else model.forward  # the first step allocates the caches
        step = target[:, position : position + 1]
        logits = forward(**inputs, decoder_input_ids=step, use_cache=True, **{CACHE: cache}).logits
        torch.testing.assert_close(logits[:, 0], expected[:, position])


def test_assisted_generation_never_changes_the_output(small_model, sources):
    model = with_varied_lengths(small_model(lm_head_bias=True), 2.0)
    assistant = with_varied_lengths(small_model(lm_head_bias=True, num_decoder_layers=1), 2.0)
    for row in range(5):
        source = sources["input_ids"][row : row + 1, : sources["attention_mask"][row].sum()]
        expected = model.generate(source, num_beams=1)
        assert torch.equal(model.generate(source, num_beams=1, assistant_model=assistant), expected)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_only_learned_positions_limit_the_length(small_model, num_beams):
    source, settings = torch.randint(4, 50, (2, 40)), {"min_new_tokens": 30, "max_new_tokens": 30}
    short, long = (
        with_varied_lengths(small_model(lm_head_bias=True, max_position_embeddings=n), 0.0) for n in (16, 64)
    )
    output = short.generate(source, num_beams=num_beams, **settings)
    assert output.shape == (2, 31)
    assert torch.equal(output, long.generate(source, num_beams=num_beams, **settings))
    learned = small_model(position_embedding="learned", max_position_embeddings=16)
    with pytest.raises(ValueError, match=r"learned positions for 16 tokens, but the text needs 40\. Shorten it"):
        learned.generate(source, num_beams=num_beams)
    with pytest.raises(ValueError, match="but the text needs 17"):
        learned.generate(source[:, :10], num_beams=num_beams, **settings)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_learned_positions_limit_the_output_to_the_table(small_model, num_beams):
    model = small_model(position_embedding="learned", max_position_embeddings=20, lm_head_bias=True)
    model.lm_head.bias.data[2] = -1e4  # never generates </s>
    output = model.generate(torch.tensor([[5, 6, 7, 2]]), num_beams=num_beams)
    assert output.shape == (1, 21)  # the start token and 20 other tokens
