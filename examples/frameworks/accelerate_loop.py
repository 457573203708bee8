"""Accelerate's `prepare`: a few steps; prints the mixed precision that Accelerate was given."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def train() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)
    model, optimizer, samples = accelerator.prepare(model, optimizer, samples)
    steps = 0
    for (batch,) in samples:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    where = f"rank {accelerator.process_index} of {accelerator.num_processes}"
    # One write: the ranks share a stream.
    print(f"{where}: {steps} steps, mixed precision {accelerator.mixed_precision}\n", end="")
    accelerator.end_training()


if __name__ == "__main__":
    train()
