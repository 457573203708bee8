"""Train on handwritten digits with what `rallypoint.worker` offers to a script.

    rallypoint agent --nproc-per-node 2 --max-restarts 3 examples/train_shared.py \\
        --checkpoint /tmp/shared.pt

* `barrier`: rank 0 of each job prepares the data, and the others wait. If it fails, the error
  names it.
* `should_checkpoint`: all ranks save at the same step when a node drains or joins, and then a node
  that drains leaves.
* `progress`: a run that keeps advancing is not taken for one that fails again and again.
* `kv`: the best accuracy of the whole run, over all its rounds, and how often it was resumed.

It is ordinary DDP otherwise. Batches are drawn by step, so that a round resumes with any number of
workers. The checkpoint has to be where every node can read it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from rallypoint import worker

SEED = 5
TEST_SAMPLES = 297
RUN = worker.Scope.RUN


def prepare_data(path: Path) -> tuple[Tensor, Tensor]:
    """Let one rank write the data, and all read it once it is complete."""
    if int(os.environ["LOCAL_RANK"]) == 0 and not path.exists():
        images, labels = load_digits(return_X_y=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        pixels = torch.as_tensor(images, dtype=torch.float32) / 16
        torch.save((pixels, torch.as_tensor(labels)), unfinished)
        os.replace(unfinished, path)
    worker.barrier("data")
    pixels, labels = torch.load(path, weights_only=True)
    return pixels, labels


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the checkpoint; all ranks return when it is complete."""
    if dist.get_rank() == 0:
        unfinished = path.with_suffix(".unfinished")
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, unfinished)
        os.replace(unfinished, path)
        print(f"saved step {step}", flush=True)
    worker.barrier("saved")


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Return the step of the checkpoint, 0 without one."""
    if not path.exists():
        return 0
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step: int = saved["step"]
    return step


def share_best(accuracy: float) -> float:
    """Keep the best accuracy of the run; return it."""
    while True:
        known = worker.kv.get("best", scope=RUN)
        if known is not None and float(known) >= accuracy:
            return float(known)
        mine = f"{accuracy:.4f}".encode()
        if worker.kv.compare_and_set("best", mine, expected=known, scope=RUN):
            return accuracy


def train(arguments: argparse.Namespace) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pixels, labels = prepare_data(arguments.data)
    test, train_x, train_y = pixels[:TEST_SAMPLES], pixels[TEST_SAMPLES:], labels[TEST_SAMPLES:]
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    step = load(arguments.checkpoint, model, optimizer)
    if rank == 0:
        begun = worker.kv.add("rounds", scope=RUN)
        print(f"round {begun} of this run: {size} workers begin at step {step}", flush=True)

    replica = DistributedDataParallel(model)
    while step < arguments.steps:
        generator = torch.Generator().manual_seed(SEED + step)
        batch = torch.randperm(len(train_x), generator=generator)[: arguments.batch_size]
        own = batch[rank::size]
        optimizer.zero_grad()
        torch.autograd.backward(functional.cross_entropy(replica(train_x[own]), train_y[own]))
        optimizer.step()
        step += 1
        worker.progress(step)
        if worker.should_checkpoint():
            save(arguments.checkpoint, model, optimizer, step)
            notice = worker.notice()
            if notice is not None and notice.is_leaving:
                print(f"rank {rank} leaves at step {step}: {notice.reason}", flush=True)
                return
        elif step % arguments.steps_per_checkpoint == 0:
            save(arguments.checkpoint, model, optimizer, step)

    if rank == 0:
        with torch.no_grad():
            right = (model(test).argmax(dim=1) == labels[:TEST_SAMPLES]).sum()
        best = share_best(float(right) / TEST_SAMPLES)
        print(f"test accuracy {float(right) / TEST_SAMPLES:.4f}, best {best:.4f}", flush=True)
    worker.barrier("end")  # rank 0 hosts the store of the process group


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on digits with rallypoint.worker.")
    parser.add_argument("--checkpoint", type=Path, default=Path("shared.pt"), metavar="PATH")
    parser.add_argument("--data", type=Path, default=Path("digits.pt"), metavar="PATH")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--steps-per-checkpoint", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, all ranks")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
