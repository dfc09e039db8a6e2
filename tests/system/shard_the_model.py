"""Run by torchrun on two processes: FSDP2 over gloo beside the same model unsharded; prints what both did."""

import json

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

SIZES = {"d_model": 32, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "d_ff": 64, "dropout": 0.0}


def build() -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(vocab_size=100, **SIZES))


def train(model: torch.nn.Module, rank: int, world: int) -> list[float]:
    """Ten updates; rank r sees the r-th part of each batch, and what is returned is the mean loss."""
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        batch = torch.randint(4, 100, (8, 6), generator=generator).chunk(world)[rank]
        loss = model(input_ids=batch, labels=batch.flip(1)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if world > 1:
            dist.all_reduce(mean)
        losses.append(mean.item() / world)
    return losses


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    plain, sharded = build(), build()
    mesh = init_device_mesh("cpu", (world,))
    for stack in (sharded.model.encoder, sharded.model.decoder):
        for layer in stack.layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    parameters = dict(sharded.named_parameters())
    results = {
        "parameters": len(parameters),
        "sharded_parameters": sum(isinstance(parameter, DTensor) for parameter in parameters.values()),
        "losses": train(plain, 0, 1),
        "sharded_losses": train(sharded, rank, world),
    }
    expected = dict(plain.named_parameters())
    differences = [(p.full_tensor() - expected[name]).abs().max().item() for name, p in parameters.items()]
    if rank == 0:
        print(json.dumps({**results, "largest_difference": max(differences)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
