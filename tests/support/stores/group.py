"""One rank of a process group over the store, as `python group.py`; prints JSON.

It makes a group twice by `rallypoint://`, and once with a store that it has made.
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import rallypoint.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LIMIT = timedelta(seconds=200)


def add_up() -> float:
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    pair = dist.new_group([0, 1])
    if RANK < 2:
        dist.all_reduce(total, group=pair)
    dist.barrier()
    dist.destroy_process_group()
    return total.item()


totals = []
for _ in range(2):
    dist.init_process_group("gloo", init_method="rallypoint://", timeout=LIMIT)
    totals.append(add_up())
dist.init_process_group(
    "gloo", init_method="rallypoint://named", rank=SIZE - 1 - RANK, world_size=SIZE, timeout=LIMIT
)
swapped = dist.get_rank()
dist.barrier()  # a rank that still connects would lose its peers
dist.destroy_process_group()
store = rallypoint.torch.Store.from_environment(prefix="own/")
dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=LIMIT)
totals.append(add_up())
# One write: torchrun's workers share one pipe, and with -u print writes the line's end apart.
sys.stdout.write(json.dumps({"totals": totals, "swapped": swapped}) + "\n")
