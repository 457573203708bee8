"""The recording worker with a process group: all ranks add up their numbers."""

import os
import runpy

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([2.0 ** dist.get_rank()])
dist.all_reduce(total)
dist.destroy_process_group()
os.environ["TOTAL"] = str(total.item())
runpy.run_path("tell.py", run_name="__main__")
