"""Train a model with and without sharding by FSDP2 and print the results as JSON.

torchrun --nproc_per_node 2 tests/system/shard_the_model.py     # on the CPU, over gloo
"""

import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.training.sharding import unsharded

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
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if world_size > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / world_size)
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = build(), build()
    mesh = init_device_mesh("cpu", (world_size,))
    for stack in (sharded.model.encoder, sharded.model.decoder):
        for layer in stack.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    parameters = dict(sharded.named_parameters())
    results = {
        "parameters": len(parameters),
        "sharded_parameters": sum(isinstance(parameter, DTensor) for parameter in parameters.values()),
        "losses": train(plain, 0, 1),
        "sharded_losses": train(sharded, rank, world_size),
    }
    expected = dict(plain.named_parameters())
    differences = [(p.full_tensor() - expected[name]).abs().max().item() for name, p in parameters.items()]
    state, copy = torch.get_rng_state(), unsharded(sharded)
    results["draws_random_numbers"] = not torch.equal(state, torch.get_rng_state())
    copied = [(p - expected[name]).abs().max().item() for name, p in copy.named_parameters()]
    results |= {"largest_difference": max(differences), "largest_difference_of_copy": max(copied)}
    if rank == 0:  # which translates alone
        results["translation"] = copy.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=5).tolist()
        results["expected_translation"] = plain.generate(torch.tensor([[5, 6, 7, 2]]), max_new_tokens=5).tolist()
        print(json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
