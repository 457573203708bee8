"""A rank of a gloo group whose collective times out in its first round, because one sleeps."""

import os
import sys
import time
from datetime import timedelta

import torch
from torch import distributed

TIMEOUT = timedelta(seconds=3)


def load_batch() -> None:
    time.sleep(1000)


def main() -> None:
    culprit = int(sys.argv[1])
    distributed.init_process_group("gloo", timeout=TIMEOUT)
    distributed.all_reduce(torch.ones(3))
    if distributed.get_rank() == culprit and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        load_batch()
    distributed.all_reduce(torch.ones(3))


main()
