"""Lightning's Trainer with DDP: two epochs of a linear model; an optional failure on rank 1."""

from __future__ import annotations

import os
import sys

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

FAIL_AT_STEP = 3


class Model(lightning.LightningModule):  # type: ignore[misc]  # Lightning is not installed here
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[Tensor], step: int) -> Tensor:
        is_first_try = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if "fail" in sys.argv and is_first_try and self.global_rank == 1 and step == FAIL_AT_STEP:
            raise ValueError("failed on purpose")
        loss: Tensor = self.layer(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train() -> None:
    torch.manual_seed(0)
    local, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=local,
        num_nodes=nodes,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4))
    environment = type(trainer.strategy.cluster_environment).__name__
    assert environment == "TorchElasticEnvironment", environment
    weight = model.layer.weight.sum().reshape(1)
    weights = [torch.zeros(1) for _ in range(trainer.world_size)]
    torch.distributed.all_gather(weights, weight.detach())
    assert all(torch.equal(other, weights[0]) for other in weights), "ranks hold different weights"
    # One write: the ranks share a stream.
    where = f"rank {trainer.global_rank} of {trainer.world_size}"
    print(f"{where}: {trainer.global_step} steps\n", end="")


if __name__ == "__main__":
    train()
