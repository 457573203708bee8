"""Ignite's `idist.Parallel` with gloo: every rank adds its number."""

from __future__ import annotations

import os

import ignite.distributed as idist
import torch


def add(_: int) -> None:
    total = idist.all_reduce(torch.tensor(float(idist.get_rank())))
    world = idist.get_world_size()
    assert total == world * (world - 1) / 2, total
    assert idist.get_nnodes() == int(os.environ["GROUP_WORLD_SIZE"])
    assert idist.backend() == "gloo"
    # One write: the ranks share a stream.
    print(f"rank {idist.get_rank()} of {world}: sum {float(total):g}\n", end="")


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(add)
