"""DeepSpeed's engine on CPUs: three steps of a linear model."""

from __future__ import annotations

import deepspeed
import torch
import torch.distributed as dist


def train() -> None:
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        config={"train_micro_batch_size_per_gpu": 4},
    )
    for _ in range(3):
        engine.backward(engine(torch.randn(4, 8)).square().mean())
        engine.step()
    # One write: the ranks share a stream.
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}: {engine.global_steps} steps\n", end="")


if __name__ == "__main__":
    train()
