"""Plain DistributedDataParallel with checkpoints, as in most tutorials.

The script runs under any launcher:

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py
    node-agent --standalone --nproc-per-node 2 examples/train_ddp.py

It trains a small network on scikit-learn's handwritten digits. With `--checkpoint` it saves after
every epoch, and resumes from there when it is started again, by hand or by its launcher.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

SEED = 7
Digits = DataLoader[tuple[Tensor, ...]]


def prepare_data(batch_size: int) -> tuple[Digits, Digits]:
    """Return this rank's batches for training, and all batches for the test."""
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
    generator = torch.Generator().manual_seed(SEED)
    train_set, test_set = random_split(digits, [0.8, 0.2], generator)
    train_loader = DataLoader(
        train_set,
        batch_size=batch_size,
        sampler=DistributedSampler(train_set, seed=SEED),
        num_workers=1,
        persistent_workers=True,
    )
    return train_loader, DataLoader(test_set, batch_size=len(test_set))


class Trainer:
    """A model, its optimizer and data, and the number of epochs so far."""

    def __init__(self, train_loader: Digits, learning_rate: float, checkpoint: Path | None) -> None:
        self.rank = int(os.environ["RANK"])
        self.train_loader = train_loader
        self.checkpoint = checkpoint
        self.epochs_run = 0
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        if checkpoint is not None and checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.epochs_run = saved["epochs_run"]
            if self.rank == 0:
                print(f"resuming after epoch {self.epochs_run}", flush=True)
        self.model = DistributedDataParallel(model)

    def train(self, epochs: int) -> None:
        while self.epochs_run < epochs:
            loss = self.run_epoch()
            if self.rank == 0:
                print(f"epoch {self.epochs_run} loss {loss:.4f}", flush=True)
                self.save()
            dist.barrier()  # no rank gets ahead of the checkpoint

    def run_epoch(self) -> float:
        """Train for one epoch; return this rank's mean loss."""
        assert isinstance(self.train_loader.sampler, DistributedSampler)
        self.train_loader.sampler.set_epoch(self.epochs_run)
        total = 0.0
        for images, labels in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.loss(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        self.epochs_run += 1
        return total / len(self.train_loader)

    def save(self) -> None:
        if self.checkpoint is None:
            return
        saved = {
            "model": self.model.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epochs_run": self.epochs_run,
        }
        # Written to another file and renamed: a rank that is killed leaves the old one intact.
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(saved, unfinished)
        os.replace(unfinished, self.checkpoint)

    @torch.no_grad()
    def compute_accuracy(self, test_loader: Digits) -> float:
        right = total = 0
        for images, labels in test_loader:
            right += int((self.model.module(images).argmax(dim=1) == labels).sum())
            total += len(labels)
        return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with DDP.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--checkpoint", type=Path, help="save here, and resume from here")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(SEED)
    train_loader, test_loader = prepare_data(arguments.batch_size)
    trainer = Trainer(train_loader, arguments.learning_rate, arguments.checkpoint)
    trainer.train(arguments.epochs)
    if trainer.rank == 0:
        print(f"test accuracy {trainer.compute_accuracy(test_loader):.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
