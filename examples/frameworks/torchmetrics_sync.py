"""A metric of torchmetrics that all ranks compute together."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torchmetrics.classification import MulticlassAccuracy

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
metric = MulticlassAccuracy(num_classes=max(world, 3), average="micro")
metric.update(torch.tensor([0, 1, 2, rank]), torch.tensor([0, 1, 2, 0]))
accuracy = float(metric.compute())
assert accuracy == (3 * world + 1) / (4 * world), accuracy
# One write: the ranks share a stream.
print(f"rank {rank} of {world}: accuracy {accuracy:g}\n", end="")
dist.destroy_process_group()
