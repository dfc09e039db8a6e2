import pytest
import torch

from hf_vanilla_transformer import Translator, VanillaTransformerConfig, convert, train_tokenizer
from hf_vanilla_transformer.inference import alignment
from hf_vanilla_transformer.inference.alignment import _link
from hf_vanilla_transformer.inference.segments import words


def test_a_failed_alignment_leaves_the_attention_of_the_model_as_it_was(small_model, monkeypatch):
    tokenizer = train_tokenizer(["a dog runs"] * 3, 280)
    model = small_model(vocab_size=len(tokenizer))

    def out_of_memory(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(model.base_model, "forward", out_of_memory)
    with pytest.raises(MemoryError):
        Translator(model, tokenizer).align([("a dog", "dogs")])
    assert model.config._attn_implementation == "sdpa"


def test_a_model_of_another_class_translates_without_alignment(small_model):
    marian = convert.to_marian(small_model())
    tokenizer = train_tokenizer(["a dog"], 270)
    assert alignment.align(marian, tokenizer, [], [("a dog", "a dog")] * 2, limit=9, max_tokens=64) == [None, None]


def test_words_are_linked_by_their_share_of_the_attention_and_added_punctuation_is_not():
    # from: Does  he    lend   it    ?
    attention = [
        [0.45, 0.00, 0.55, 0.05, 0.05],  # Leiht
        [0.40, 0.30, 0.10, 0.10, 0.10],  # er
        [0.40, 0.10, 0.30, 0.10, 0.10],  # ,
        [0.40, 0.00, 0.00, 0.50, 0.10],  # es
        [0.10, 0.00, 0.10, 0.10, 0.70],  # ?
    ]
    links = _link(torch.tensor(attention), "Does he lend it?", "Leiht er, es?")
    assert links == [[2, 0], [1], [], [3], [4]]


@pytest.mark.parametrize(
    ("source", "translation", "attention", "expected"),
    [
        ("5 %", "5 Prozent", [[0.9, 0.1], [0.1, 0.9]], [[0], [1]]),
        ("cats & dogs", "Katzen und Hunde", [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], [[0], [1], [2]]),
        # the comma comes from nothing, and takes no source word from the others
        ("Does he", "Ja, er", [[0.6, 0.8], [0.05, 0.05], [0.1, 0.7]], [[0], [], [1]]),
        ("Eat!", "กิน !", [[0.7, 0.1], [0.8, 0.1], [0.7, 0.1], [0.1, 0.8]], [[0], [0], [0], [1]]),
        # words beyond the limit have no attention
        ("a b", "x y z", [[0.9, 0.1], [0.1, 0.9], [0.0, 0.0]], [[0], [1], []]),
        ("! ?", "x", [[0.5, 0.5]], [[]]),
        ("", "x y", [[], []], [[], []]),
        ("a", "", [], []),
    ],
)
def test_words_come_from_words_and_symbols_count_as_words(source, translation, attention, expected):
    sizes = (len(words(translation)), len(words(source)))
    assert _link(torch.tensor(attention).view(sizes), source, translation) == expected


def test_tokens_of_several_words_link_each_of_them_and_their_punctuation():
    tokenizer = train_tokenizer(["the water runs.", "l'eau coule."], 9, "word")
    # "the", "water", "runs." and the end; "l'eau", "coule." and the end
    attention = torch.tensor([[0.3, 0.6, 0.0, 0.1], [0.1, 0.1, 0.7, 0.1], [0.0, 0.0, 0.1, 0.9]])

    class Reader:
        config = VanillaTransformerConfig(vocab_size=9)

        def attention(self, inputs):
            shape = (inputs["decoder_input_ids"].shape[1], inputs["input_ids"].shape[1])
            assert shape == attention.shape
            return attention.expand(1, 1, 1, *shape)

    links = alignment.align(Reader(), tokenizer, [], [("the water runs.", "l'eau coule.")], limit=9, max_tokens=64)
    # "l", the apostrophe, "eau", "coule" and the full stop
    assert links == [[[1, 0], [], [1], [2], [3]]]
