import sys

import pytest
import torch

from hf_vanilla_transformer.plots import attention_map

WEIGHTS = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.5, 0.25]])


def test_an_attention_map_has_a_labelled_row_for_each_query_and_a_column_for_each_key():
    figure = attention_map(WEIGHTS, ["ein", "hund"], ["a", "dog", "</s>"], "layer 1, head 2", ("target", "source"))
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["ein", "hund"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "dog", "</s>"]
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == ("target", "source", "layer 1, head 2")
    (image,) = axes.images
    assert image.get_array().tolist() == WEIGHTS.tolist()
    assert image.get_clim() == (0, 1)  # colours mean the same in every picture


def test_longer_texts_get_larger_pictures():
    small, large = (attention_map(torch.eye(n), ["x"] * n, ["y"] * n, "", ("", "")).get_size_inches() for n in (5, 40))
    assert (large > small).all()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"hf-vanilla-transformer\[plots\]"):
        attention_map(WEIGHTS, ["a", "b"], ["a", "b", "c"], "", ("", ""))
