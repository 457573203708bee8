"""Training with the features that `torch.distributed.elastic` offers to a script.

* `@record` writes an uncaught error to a file, so that the launcher can report it.
* `expires` bounds every step: a worker that hangs in one is ended by its launcher, and the
  job restarts instead of standing still. The launcher has to be asked for that watchdog:

      TORCHELASTIC_ENABLE_FILE_TIMER=1 node-agent --standalone --nproc-per-node 2 \\
          --max-restarts 3 examples/train_elastic.py --checkpoint /tmp/elastic.pt

  Without it, and outside any launcher of that kind, steps are not bounded.
* `TORCHELASTIC_RESTART_COUNT` tells how often the job was restarted.
* Checkpoints hold all that a restart needs, also one with another number of workers.

The data is generated: points in space, and which of a few random directions is closest to each.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.elastic.timer import (  # type: ignore[attr-defined]  # exported unsaid
    FileTimerClient,
    configure,
    expires,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEED = 11
FEATURES, CLASSES = 16, 5
TRAIN_SAMPLES, TEST_SAMPLES = 2048, 512
TIMER_FILE = os.environ.get("TORCHELASTIC_TIMER_FILE")
RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
# For a peer that hangs. A peer that dies is noticed at once.
SILENCE_LIMIT = timedelta(seconds=60)


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Samples that are computed on demand, in a process of the DataLoader."""

    def __init__(self, begin: int, count: int) -> None:
        self.begin, self.count = begin, count
        generator = torch.Generator().manual_seed(SEED)
        self.directions = torch.randn(CLASSES, FEATURES, generator=generator)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(SEED + 1 + self.begin + index)
        point = torch.randn(FEATURES, generator=generator)
        return point, (self.directions @ point).argmax()


@dataclass(slots=True)
class State:
    """Contents of a checkpoint."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    epoch: int = 0
    """Epochs that are complete."""

    def save(self, path: Path) -> None:
        saved = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
        }
        unfinished = path.with_suffix(".unfinished")
        torch.save(saved, unfinished)
        os.replace(unfinished, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.epoch = saved["epoch"]


def bounded(limit_s: float) -> AbstractContextManager[None]:
    """Have the watchdog, if there is one, end this worker if the block takes longer."""
    if not TIMER_FILE:
        return nullcontext()
    timer: AbstractContextManager[None] = expires(after=limit_s)
    return timer


def batches(dataset: Dataset[tuple[Tensor, Tensor]], epoch: int, size: int) -> Iterator[Tensor]:
    """Yield this rank's share of an epoch in batches; the same again after a restart."""
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(dataset, seed=SEED)
    sampler.set_epoch(epoch)
    yield from DataLoader(dataset, batch_size=size, sampler=sampler, num_workers=2)


def train_epoch(model: nn.Module, state: State, arguments: argparse.Namespace) -> float:
    """Return the last loss of this rank."""
    loss = torch.zeros(())
    share = arguments.batch_size // dist.get_world_size()
    for points, labels in batches(Points(0, TRAIN_SAMPLES), state.epoch, share):
        with bounded(arguments.step_limit):
            state.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(points), labels)
            torch.autograd.backward(loss)
            state.optimizer.step()
    state.epoch += 1
    return loss.item()


@torch.no_grad()
def compute_accuracy(model: nn.Module) -> float:
    """Return the share of right answers; every rank looks at its part."""
    counts = torch.zeros(2)
    for points, labels in batches(Points(TRAIN_SAMPLES, TEST_SAMPLES), 0, TEST_SAMPLES):
        counts += torch.tensor([(model(points).argmax(dim=1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def report(line: str) -> None:
    """Print a line that concerns all ranks, once."""
    if dist.get_rank() == 0:
        print(line, flush=True)


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    state = State(model, torch.optim.Adam(model.parameters(), lr=0.01))
    if arguments.checkpoint is not None and arguments.checkpoint.exists():
        state.load(arguments.checkpoint)
    how = f"resume after epoch {state.epoch}" if state.epoch else "begin"
    watch = ", each step is bounded" if TIMER_FILE else ""
    report(f"restart {RESTARTS}: {dist.get_world_size()} workers {how}{watch}")

    replica = DistributedDataParallel(model)
    while state.epoch < arguments.epochs:
        loss = train_epoch(replica, state, arguments)
        report(f"epoch {state.epoch} loss {loss:.4f}")
        if arguments.checkpoint is not None and dist.get_rank() == 0:
            state.save(arguments.checkpoint)
        dist.barrier()
    report(f"test accuracy {compute_accuracy(model):.4f}")


@record
def main() -> None:
    parser = argparse.ArgumentParser(description="Train with the features of torch elastic.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--step-limit", type=float, default=30, metavar="S", help="per step")
    parser.add_argument("--checkpoint", type=Path, help="save here, and resume from here")
    arguments = parser.parse_args()

    if TIMER_FILE:
        configure(FileTimerClient(TIMER_FILE))
    dist.init_process_group("gloo", timeout=SILENCE_LIMIT)
    try:
        train(arguments)
        dist.barrier()
    finally:
        # After a failure too: gloo's threads would abort an interpreter that ends under them.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
