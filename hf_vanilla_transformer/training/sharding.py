"""Models whose weights FSDP2 divides among processes."""

import torch
from accelerate.utils import FullyShardedDataParallelPlugin, parse_flag_from_env
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import TrainingArguments

from ..errors import UserError
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


def shards_model(args: TrainingArguments) -> bool:
    """Return whether a run divides its model among processes, as its arguments or `accelerate launch` say."""
    launched = any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")))
    return bool(launched or args.fsdp or args.deepspeed)


def check_saved_form(plugin: FullyShardedDataParallelPlugin) -> None:
    """Check that FSDP saves whole weights in checkpoints, from which a run resumes and which are averaged.

    Raises:
        ValueError: if it saves parts of them.
    """
    if plugin.state_dict_type.name != "FULL_STATE_DICT":
        raise UserError(
            f"FSDP saves weights as {plugin.state_dict_type.name}: set fsdp_state_dict_type to FULL_STATE_DICT, as in "
            "scripts/accelerate/fsdp.yaml."
        )


def keep_in_float32(plugin: FullyShardedDataParallelPlugin) -> None:
    """Let FSDP2 in bfloat16 add up gradients in float32, and return the loss as the model has computed it.

    The default returns it in bfloat16. In float32, the outputs of layers would not suit the projection's weights.
    """
    plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def restore_name(model: torch.nn.Module) -> None:
    """Give the class that FSDP2 made of a model's class its name and module again: they are saved with the model."""
    # fully_shard sets the class of a model to a new one named FSDP..., which inherits from FSDPModule and the original
    sharded = type(model)
    original = sharded.__mro__[2]
    sharded.__name__ = original.__name__
    sharded.__module__ = original.__module__


def is_sharded(model: torch.nn.Module) -> bool:
    """Return whether FSDP2 has sharded the model, which it does for all parameters or none."""
    return hasattr(next(model.parameters()), "device_mesh")


def unsharded(model: VanillaTransformerForConditionalGeneration) -> VanillaTransformerForConditionalGeneration:
    """Return the model itself, or a copy with all weights on every process if FSDP2 has sharded it.

    Processes validate shares of different lengths. If they had to collect the weights at every step, those with more
    steps would wait for the others forever. Every process must call this function.
    """
    if not is_sharded(model):
        return model
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    # Drawing the copy's initial weights must not change the dropout of later updates
    with torch.random.fork_rng(devices=[]):
        copy = type(model)(model.config)
    copy.load_state_dict(weights)
    copy.generation_config = model.generation_config
    return copy.to(model.device).eval()  # type: ignore[arg-type]
