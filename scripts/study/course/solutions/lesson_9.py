"""Answers to lesson 9, and wrong answers that its checks reject."""

from collections.abc import Callable

import torch

SOURCE = torch.tensor([[5, 9, 23, 7, 31, 12]])
TARGET = torch.tensor([[1, 8, 40, 17, 6]])


def future_leaks(model):
    """Return how much a change of a later word of the target changes the logits before it; 0 if the model is right."""
    changed = TARGET.clone()
    changed[0, 3] = 44
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    after = model(input_ids=SOURCE, decoder_input_ids=changed).logits
    return (after - before)[:, :3].abs().max()


def padding_leaks(model):
    """Return how much padding of the source changes the logits; 0 if the model is right."""
    padded = torch.cat((SOURCE, torch.zeros(1, 4, dtype=torch.long)), 1)
    mask = (padded != 0).long()
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    after = model(input_ids=padded, attention_mask=mask, decoder_input_ids=TARGET).logits
    return (after - before).abs().max()


def order_matters(model):
    """Return how much the states of the encoder change if the sentence is reversed; 0 if no word knows its place."""
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    after = model.model.encoder(input_ids=SOURCE.flip(1)).last_hidden_state
    return (after.flip(1) - before).abs().max()


def diagnosis():
    """Return the fault of each model, as the table names it, by the number of the model."""
    return {
        1: "padding visible to the encoder",
        2: "no positions",
        3: "padding visible to cross-attention",
        4: "dropout in evaluation",
        5: "heads split by view alone",
        6: "no causal mask",
        7: "softmax in the model",
        8: "target not shifted",
        9: "pre-norm encoder",
        10: "one projection for all heads",
        11: "doubled exponent in the positions",
        12: "scores not scaled",
    }


def compares_all_positions(model):
    changed = TARGET.clone()
    changed[0, 3] = 44
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    return (model(input_ids=SOURCE, decoder_input_ids=changed).logits - before).abs().max()


def changes_nothing_later(model):
    changed = TARGET.clone()
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    return (model(input_ids=SOURCE, decoder_input_ids=changed).logits - before)[:, :3].abs().max()


def compares_each_position(model):
    changed = TARGET.clone()
    changed[0, 3] = 44
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    after = model(input_ids=SOURCE, decoder_input_ids=changed).logits
    return (after - before)[:, :3].abs().amax(-1)


def pads_before_the_words(model):
    padded = torch.cat((torch.zeros(1, 4, dtype=torch.long), SOURCE), 1)
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    after = model(input_ids=padded, attention_mask=(padded != 0).long(), decoder_input_ids=TARGET).logits
    return (after - before).abs().max()


def pads_without_mask(model):
    padded = torch.cat((SOURCE, torch.zeros(1, 4, dtype=torch.long)), 1)
    before = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    return (model(input_ids=padded, decoder_input_ids=TARGET).logits - before).abs().max()


def looks_at_the_encoder_alone(model):
    padded = torch.cat((SOURCE, torch.zeros(1, 4, dtype=torch.long)), 1)
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    after = model.model.encoder(input_ids=padded, attention_mask=(padded != 0).long()).last_hidden_state
    return (after[:, :6] - before).abs().max()


def compares_other_words(model):
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    return (model.model.encoder(input_ids=SOURCE.flip(1)).last_hidden_state - before).abs().max()


def flips_the_batch(model):
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    return (model.model.encoder(input_ids=SOURCE.flip(0)).last_hidden_state.flip(0) - before).abs().max()


def adds_signed_differences(model):
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    after = model.model.encoder(input_ids=SOURCE.flip(1)).last_hidden_state
    return (after.flip(1) - before).sum()


def compares_each_word(model):
    before = model.model.encoder(input_ids=SOURCE).last_hidden_state
    after = model.model.encoder(input_ids=SOURCE.flip(1)).last_hidden_state
    return (after.flip(1) - before).abs().amax(-1)


def one_missing():
    return {number: fault for number, fault in diagnosis().items() if number != 4}


def two_swapped():
    found = diagnosis()
    return {**found, 1: found[2], 2: found[1]}


# for each exercise, wrong answers by words of the message that rejects them
WRONG_ANSWERS: dict[str, dict[str, Callable]] = {
    "future_leaks": {
        "only the positions before": compares_all_positions,
        "Change a word of the target": changes_nothing_later,
        "returns several numbers": compares_each_position,
    },
    "padding_leaks": {
        "tell the model where it is": pads_without_mask,
        "which keep their positions": pads_before_the_words,
        "both the encoder and cross-attention": looks_at_the_encoder_alone,
    },
    "order_matters": {
        "reverse their states back": compares_other_words,
        "dimension 0 is the batch": flips_the_batch,
        "others cancel in a sum": adds_signed_differences,
        "returns several numbers": compares_each_word,
    },
    "diagnosis": {
        "no entry for [4]": one_missing,
        "If it were": two_swapped,
        "none of the faults": lambda: {**diagnosis(), 5: "bad luck"},
    },
}
