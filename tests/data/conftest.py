"""Fixtures for the tests of data: the built-in phrases."""

import pytest

from hf_vanilla_transformer.data.phrases import Phrase, splits


@pytest.fixture(scope="session")
def phrases() -> list[Phrase]:
    """All phrases of the built-in corpus."""
    return [phrase for part in splits().values() for phrase in part]
