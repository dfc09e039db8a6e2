import pytest
import torch

from hf_vanilla_transformer.model import generation_vanilla_transformer as generation


@pytest.fixture
def sources() -> dict[str, torch.Tensor]:
    lengths = torch.tensor([9, 3, 6, 1, 8, 9, 5, 4, 2, 7, 9])
    attention_mask = (torch.arange(9) < lengths[:, None]).long()
    return {"input_ids": torch.randint(4, 50, (11, 9)) * attention_mask, "attention_mask": attention_mask}


@pytest.fixture
def searches(monkeypatch) -> list[str]:
    """Return a list that collects the names of the fast searches that run."""
    seen = []
    for name in ("greedy_search", "beam_search"):
        search = getattr(generation, name)
        monkeypatch.setattr(
            generation, name, lambda *args, s=search, n=name, **more: (seen.append(n), s(*args, **more))[1]
        )
    return seen
