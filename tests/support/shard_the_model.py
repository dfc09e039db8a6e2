"""Train a model with and without sharding by FSDP2 and print the results as JSON.

torchrun --nproc_per_node 2 tests/support/shard_the_model.py     # on the CPU, over gloo
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.training.compilation import compiled
from hf_vanilla_transformer.training.sharding import keep_in_float32, restore_name, unsharded

CONFIGURATION = Path(__file__).parents[2] / "scripts" / "accelerate" / "fsdp.yaml"
SIZES = {"d_model": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_ff": 64, "dropout": 0.0}


def build() -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=100, **SIZES))


def train(model: torch.nn.Module, rank: int, world_size: int) -> list[float]:
    """Make ten updates, each process with its part of the batch, and return the losses averaged over processes."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        batch = torch.randint(4, 100, (8, 6), generator=generator).chunk(world_size)[rank]
        loss = model(input_ids=batch, labels=batch.flip(1)).loss
        assert loss.dtype == torch.float32  # with sharded weights in bfloat16, too
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if world_size > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
    return losses


def shard(model: torch.nn.Module, bf16: bool = False) -> torch.nn.Module:
    """Shard the model as accelerate does on GPUs with `scripts/accelerate/fsdp.yaml`, which has `bf16`."""
    given = yaml.safe_load(CONFIGURATION.read_text())["fsdp_config"]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=given["fsdp_version"],
        reshard_after_forward=given["fsdp_reshard_after_forward"],
        auto_wrap_policy=given["fsdp_auto_wrap_policy"],
        transformer_cls_names_to_wrap=given["fsdp_transformer_layer_cls_to_wrap"].split(","),
        state_dict_type=given["fsdp_state_dict_type"],
        cpu_ram_efficient_loading=False,
    )
    if bf16:
        keep_in_float32(plugin)
    state = SimpleNamespace(fsdp_plugin=plugin)
    accelerator = SimpleNamespace(state=state, mixed_precision="no", device=torch.device("cpu"), is_main_process=True)
    return fsdp2_prepare_model(accelerator, model)


def logits_of_sharded_layers() -> torch.Tensor:
    """Return logits in bfloat16 of a model whose projection is not sharded on its own, unlike its layers."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    keep_in_float32(plugin)
    model = build()
    for part in (*model.model.encoder.layers, *model.model.decoder.layers, model):
        fully_shard(part, mp_policy=plugin.mixed_precision_policy)
    tokens = torch.arange(4, 16).view(2, 6)
    return model(input_ids=tokens, decoder_input_ids=tokens).logits


def compiled_losses(rank: int, world_size: int) -> dict[str, list[float]]:
    """Return the losses of compiled layers that are sharded, and of those whose gradients DDP averages."""
    args: Any = SimpleNamespace(torch_compile_backend="eager", torch_compile_mode=None)
    losses = {}
    for name, distribute in (("sharded", shard), ("parallel", DistributedDataParallel)):
        model = build()
        with compiled(model, args):
            losses[f"compiled_{name}_losses"] = train(distribute(model), rank, world_size)
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = build(), build()
    sharded = shard(sharded)
    parameters = dict(sharded.named_parameters())
    results = {
        "parameters": len(parameters),
        "sharded_parameters": sum(isinstance(parameter, DTensor) for parameter in parameters.values()),
        "losses": train(plain, 0, 1),
        "sharded_losses": train(sharded, rank, world_size),
        "bfloat16_losses": train(shard(build(), bf16=True), rank, world_size),
    }
    results |= compiled_losses(rank, world_size)
    results["bfloat16_logits"] = str(logits_of_sharded_layers().dtype)
    expected = dict(plain.named_parameters())
    differences = [(p.full_tensor() - expected[name]).abs().max().item() for name, p in parameters.items()]
    state, copy = torch.get_rng_state(), unsharded(sharded)
    results["draws_random_numbers"] = not torch.equal(state, torch.get_rng_state())
    copied = [(p - expected[name]).abs().max().item() for name, p in copy.named_parameters()]
    results |= {"largest_difference": max(differences), "largest_difference_of_copy": max(copied)}
    if rank == 0:  # which saves and translates alone
        restore_name(sharded)
        with tempfile.TemporaryDirectory() as folder:
            sharded.save_pretrained(folder, state_dict=copy.state_dict())
            results["saved_files"] = sorted(path.name for path in Path(folder).iterdir())
            results["saved_config"] = json.loads(Path(folder, "config.json").read_text())
        results["translation"] = copy.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=5).tolist()
        results["expected_translation"] = plain.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=5).tolist()
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
