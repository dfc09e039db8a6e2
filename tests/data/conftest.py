"""Fixtures for the tests of data: generated phrases."""

import pytest

from hf_vanilla_transformer.data.phrases import generate


@pytest.fixture(scope="session")
def phrases():
    """20,000 phrases of the built-in corpus."""
    return generate(20_000, seed=1)
