"""A rank of a gloo group, one of which stands still in its first round until a file is there.

The group trains until another file is there.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import distributed

BEFORE = 5
PAUSE_S = 0.05


def load_batch(folder: Path) -> None:
    while not (folder / "go").exists():
        time.sleep(PAUSE_S)


def main() -> None:
    folder, culprit = Path(sys.argv[1]), int(sys.argv[2])
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for _ in range(BEFORE):
        distributed.all_reduce(torch.ones(3))
    if rank == culprit and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        load_batch(folder)
    ends = torch.zeros(1)
    while not ends:
        time.sleep(PAUSE_S)
        ends = torch.tensor([float(rank == 0 and (folder / "end").exists())])
        distributed.all_reduce(ends)
    distributed.destroy_process_group()  # else a rank that ends first may abort the others


main()
