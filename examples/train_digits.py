"""Train a small network on scikit-learn's handwritten digits, and survive restarts.

An ordinary DDP script for CPUs (gloo), for any launcher that sets torchrun's environment:

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 examples/train_digits.py

Batches. `--batch-size` counts the samples of one step over *all* ranks, so that the same steps are
taken whatever the world size is. `DistributedSampler` gives rank r every world_size-th entry of the
epoch's shuffle, and the shuffle depends on seed and epoch only. So a step consists of the next
batch_size entries of the shuffle, and each rank takes those of them that are its own. The shares
may differ by one sample; the losses are weighted accordingly.

Restarts. A checkpoint holds how many entries of the current epoch's shuffle are used up. After a
restart, with any number of ranks, training resumes with the next entry. Fewer than
`--steps-per-checkpoint` finished steps are repeated; otherwise no sample of the epoch is left out
or used twice. Rank 0 writes the file and replaces it atomically, so it is always complete. At the
start every rank looks for a file, and all ranks load the one with the most steps. So the nodes need
not share a file system, though less is lost when they do. Delete it to start over.

torchrun 2.13 keeps one key-value store across restarts, where new workers may find addresses of
dead ones ("connectFullMesh failed"). TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment helps.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DistributedSampler, TensorDataset

worker: Any = None
if "RALLYPOINT_JOB_ID" in os.environ:
    with suppress(ImportError):  # the workers' interpreter need not have it
        worker = import_module("rallypoint.worker")

SEED = 20
TEST_SHARE = 0.2
# A peer that dies closes its connections, which gloo reports at once. This limit is for a peer that
# only falls silent.
SILENCE_LIMIT = timedelta(seconds=60)


@dataclass(slots=True)
class Progress:
    """How far training has come.

    epoch: the epoch being worked on, from 1; one more than `--epochs` when training is complete.
    used: entries of this epoch's shuffle that are used up, over all ranks.
    step: optimizer steps taken since the beginning of training.
    """

    epoch: int = 1
    used: int = 0
    step: int = 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits; survive restarts.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="resume and save here")
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a step, all ranks")
    parser.add_argument("--steps-per-checkpoint", type=int, default=5)
    parser.add_argument(
        "--step-time", type=float, default=0.0, metavar="SECONDS", help="least duration of a step"
    )
    parser.add_argument(
        "--log-every", type=int, default=10, metavar="STEPS", help="0: only once per epoch"
    )
    arguments = parser.parse_args()
    if min(arguments.epochs, arguments.batch_size, arguments.steps_per_checkpoint) < 1:
        parser.error("--epochs, --batch-size and --steps-per-checkpoint must be at least 1")
    return arguments


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the test set; the same split on every rank and in every run."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=TEST_SHARE, random_state=SEED, stratify=labels
    )

    def as_dataset(x: object, y: object) -> TensorDataset:
        pixels = torch.as_tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
        return TensorDataset(pixels, torch.as_tensor(y, dtype=torch.int64))

    return as_dataset(train_x, train_y), as_dataset(test_x, test_y)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def save_checkpoint(path: Path, model: nn.Module, optimizer: Optimizer, progress: Progress) -> None:
    """Replace the checkpoint atomically: a reader finds the old one or the new one, no part."""
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": progress.epoch,
        "used": progress.used,
        "step": progress.step,
    }
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    # The rename itself is durable only once its directory is.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def resume(path: Path | None, model: nn.Module, optimizer: Optimizer) -> Progress:
    """Load the newest checkpoint of any rank on all ranks; start from zero without one."""
    content = None
    if path is not None and path.exists():
        content = torch.load(path, map_location="cpu", weights_only=True)

    # Rank 0 may have moved to a node with an older file, or with none: the most steps win.
    found = torch.tensor([-1 if content is None else content["step"]])
    steps = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, found)
    newest = max(range(len(steps)), key=lambda rank: (int(steps[rank]), -rank))
    if int(steps[newest]) < 0:
        return Progress()

    box = [content]
    dist.broadcast_object_list(box, src=newest)
    content = box[0]
    assert content is not None
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    return Progress(epoch=content["epoch"], used=content["used"], step=content["step"])


def compute_share(begin: int, end: int) -> slice:
    """Return which of its sampler entries are this rank's part of the shuffle's begin ... end.

    Rank r holds the entries r, r + world_size, r + 2 * world_size, ... of the shuffle.
    """
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return slice(*(-((rank - bound) // world_size) for bound in (begin, end)))


def compute_mean(total: float, count: int) -> float:
    """Return the mean over the samples of all ranks."""
    sums = torch.tensor([total, count], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1].clamp(min=1))


@torch.no_grad()
def compute_accuracy(model: nn.Module, dataset: TensorDataset) -> float:
    """Return the share of right answers; every rank looks at its part of the samples."""
    images, labels = dataset.tensors
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    right = (model(images[mine]).argmax(dim=1) == labels[mine]).sum()
    return compute_mean(float(right), len(labels[mine]))


def take_step(
    model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor, batch_size: int
) -> float:
    """Take one optimizer step and return the sum of the losses over this rank's samples."""
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(images), labels, reduction="sum")
    # DDP averages over ranks. Scaled like this, the result is the mean over the global batch.
    torch.autograd.backward(loss * dist.get_world_size() / batch_size)
    optimizer.step()
    return loss.item()


def train_epoch(
    arguments: argparse.Namespace,
    model: DistributedDataParallel,
    optimizer: Optimizer,
    dataset: TensorDataset,
    progress: Progress,
) -> float:
    """Train on the rest of the epoch and move on to the next; return the mean loss."""
    epoch = progress.epoch
    images, labels = dataset.tensors
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(dataset, seed=SEED)
    sampler.set_epoch(epoch)
    own = torch.tensor(list(sampler))
    loss_sum, count = 0.0, 0

    # The sampler pads the shuffle to a multiple of the world size; the padding is never reached.
    while progress.epoch == epoch:
        started = time.monotonic()
        end = min(progress.used + arguments.batch_size, len(dataset))
        share = own[compute_share(progress.used, end)]
        batch_size = end - progress.used
        loss_sum += take_step(model, optimizer, images[share], labels[share], batch_size)
        count += len(share)
        progress.used, progress.step = end, progress.step + 1
        if worker is not None:
            worker.progress(progress.step)
        if end == len(dataset):
            progress.epoch, progress.used = epoch + 1, 0

        if arguments.log_every and progress.step % arguments.log_every == 0:
            loss = compute_mean(loss_sum, count)
            report(f"epoch={epoch} step={progress.step} loss={loss:.4f}")
        is_due = progress.step % arguments.steps_per_checkpoint == 0
        if arguments.checkpoint and is_due and dist.get_rank() == 0:
            save_checkpoint(arguments.checkpoint, model.module, optimizer, progress)
        time.sleep(max(0.0, started + arguments.step_time - time.monotonic()))
    return compute_mean(loss_sum, count)


def mark(name: Literal["imported", "process_group"]) -> None:
    """Note in the timeline of the round how far this worker has come, if it runs in one."""
    if worker is not None:
        worker.mark(name)


def write_line(line: str) -> None:
    """Print a line as one write, so that ranks that share a terminal do not mix theirs."""
    print(f"{line}\n", end="", flush=True)


def report(line: str) -> None:
    """Print a line that concerns all ranks, once."""
    if dist.get_rank() == 0:
        write_line(line)


def train(arguments: argparse.Namespace) -> None:
    torch.manual_seed(SEED)
    train_set, test_set = load_data()
    bare_model = build_model()
    optimizer = torch.optim.Adam(bare_model.parameters(), lr=3e-3)
    progress = resume(arguments.checkpoint, bare_model, optimizer)
    model = DistributedDataParallel(bare_model)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    write_line(
        f"started rank={dist.get_rank()} world_size={dist.get_world_size()} restart={restarts}"
        f" epoch={progress.epoch} step={progress.step}"
    )

    while progress.epoch <= arguments.epochs:
        epoch = progress.epoch
        loss = train_epoch(arguments, model, optimizer, train_set, progress)
        accuracy = compute_accuracy(bare_model, test_set)
        report(f"epoch={epoch} loss={loss:.4f} accuracy={accuracy:.3f}")

    if arguments.checkpoint and dist.get_rank() == 0:
        save_checkpoint(arguments.checkpoint, bare_model, optimizer, progress)
    accuracy = compute_accuracy(bare_model, test_set)
    report(f"test accuracy {accuracy:.3f} after {progress.epoch - 1} epochs (restarts {restarts})")
    # Rank 0 may host the store that the others still talk to: no rank leaves before all are done.
    dist.barrier()


@record
def main() -> None:
    arguments = parse_arguments()
    mark("imported")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=SILENCE_LIMIT)
    mark("process_group")
    try:
        train(arguments)
    finally:
        # After a failure too: gloo's threads would abort an interpreter that ends under them.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
