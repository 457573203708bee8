"""A rank of a gloo group that stands still as its arguments say, after it has made a file."""

import ctypes
import os
import signal
import sys
import time

import torch
from torch import distributed


def load_batch() -> None:
    time.sleep(1000)


def hold_the_lock() -> None:
    reader, _ = os.pipe()
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


def wait_for_a_writer(path: str) -> None:
    os.mkfifo(path)
    open(path).close()


def main() -> None:
    folder, culprit, deed = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    distributed.all_reduce(torch.ones(3))
    open(f"{folder}/{rank}", "w").close()
    if rank == culprit:
        if deed == "asleep":
            load_batch()
        elif deed == "locked":
            hold_the_lock()
        elif deed == "fifo":
            wait_for_a_writer(f"{folder}/fifo")
        elif deed == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif deed == "barrier":
            distributed.barrier()
    distributed.all_reduce(torch.ones(3))
    load_batch()


main()
