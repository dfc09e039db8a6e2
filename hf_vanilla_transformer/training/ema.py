"""The exponential moving average of the weights of a training run (Polyak and Juditsky 1992)."""

import copy
from pathlib import Path

import torch
from safetensors.torch import load_model, save_model
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration

AVERAGE = "ema.safetensors"  # in a checkpoint, next to the weights that training resumes from


class MovingAverage(TrainerCallback):
    """Keep a moving average of a model's weights, and copy it into the model at the end of training.

    After update t, `average = d * average + (1 - d) * weights`, where d = min(decay, (1 + t) / (10 + t)), so that the
    initial weights are soon forgotten.

    Args:
        decay: 0.999 averages roughly the last thousand updates.

    Attributes:
        model: a copy of the model with the averaged weights, set when training starts.
    """

    model: VanillaTransformerForConditionalGeneration

    def __init__(self, decay: float):
        self.decay = decay

    def start(self, model: VanillaTransformerForConditionalGeneration, checkpoint: str | None) -> None:
        """Start from the weights of `model`, or from the average saved in `checkpoint`."""
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        if checkpoint:
            load_model(self.model, Path(checkpoint, AVERAGE))

    def save(self, checkpoint: Path) -> None:
        """Save the average in a checkpoint folder."""
        # save_model, because save_file refuses tied weights, which share their memory
        save_model(self.model, str(checkpoint / AVERAGE), metadata={"format": "pt"})

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        # The trainer starts a resumed run from its checkpoint, whose path callbacks do not get
        if state.global_step == 0:
            self.start(model, None)

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        decay = min(self.decay, (1 + state.global_step) / (10 + state.global_step))
        # Averages all weights in a few kernels, where a loop would start one for each
        update = get_ema_multi_avg_fn(decay)
        update(list(self.model.parameters()), list(model.parameters()), None)

    @torch.no_grad()
    def on_train_end(self, args, state, control, model=None, **kwargs):
        # By now, transformers has loaded the best checkpoint's weights, but validation was of its average
        if args.load_best_model_at_end and state.best_model_checkpoint:
            load_model(self.model, Path(state.best_model_checkpoint, AVERAGE))
        for average, weight in zip(self.model.parameters(), model.parameters(), strict=True):
            weight.copy_(average)
