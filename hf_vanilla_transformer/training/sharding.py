"""Models whose weights FSDP2 has divided among processes."""

from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether FSDP2 has sharded the model, which it does for all parameters or none."""
    return hasattr(next(model.parameters()), "device_mesh")


def unsharded(model: Any) -> Any:
    """Return the model itself, or a copy with all weights on every process if FSDP2 has sharded it.

    Processes validate shares of different lengths. If they had to collect the weights at every step, those with more
    steps would wait for the others forever. Every process must call this function.
    """
    if not is_sharded(model):
        return model
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    with torch.random.fork_rng(devices=[]):  # the random weights of the copy leave training as it is
        copy = type(model)(model.config)
    copy.load_state_dict(weights)
    copy.generation_config = model.generation_config
    return copy.to(model.device).eval()
