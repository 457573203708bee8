"""A workload that counts steps and checkpoints on notice: no torch.

After each step all ranks meet, and agree on whether to save; a step counts when all have come. Once
rank 0 has saved, the workers of a node that drains leave. A lost step is one that was done and is
in no checkpoint.

    counter.py SOCKET CHECKPOINT [stubborn]

The workload reports `start`, `step`, `left` and `signal` to SOCKET in datagrams.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

from rallypoint import worker
from rallypoint.client.errors import RallypointError

WORK_S = 0.02
"""Duration of a step."""
RANK = int(os.environ["RANK"])
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.connect(sys.argv[1])
CHECKPOINT = Path(sys.argv[2])
IS_STUBBORN = "stubborn" in sys.argv[3:]


def report(kind: str, **facts: object) -> None:
    """Report an event with the time of CLOCK_MONOTONIC, which all processes of a machine share."""
    named = {"kind": kind, "pid": os.getpid(), "rank": RANK, "at_s": time.monotonic(), **facts}
    named["round"] = int(os.environ["RALLYPOINT_ROUND"])
    named["node"] = os.environ["RALLYPOINT_NODE"]
    LINE.send(json.dumps(named).encode())


def came(signum: int, _: FrameType | None) -> None:
    """Report a signal. A stop ends the worker; a drain is also announced by the file."""
    report("signal", signum=signum)
    if signum == signal.SIGTERM:
        os._exit(0)


def save(step: int) -> None:
    """Replace the checkpoint atomically."""
    fresh = CHECKPOINT.with_suffix(f".{RANK}")
    fresh.write_text(str(step))
    os.replace(fresh, CHECKPOINT)


def count(step: int) -> None:
    """Count from `step` on, until this worker leaves; save in each step once a node drains."""
    saves = False
    while True:
        time.sleep(WORK_S)
        saves = worker.should_checkpoint() or saves
        step += 1
        report("step", step=step)
        if not saves:
            continue
        if RANK == 0:
            save(step)
        worker.barrier("saved")
        if any(one.is_leaving for one in worker.notices()) and not IS_STUBBORN:
            report("left", step=step)
            os._exit(0)


for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, came)
begun = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
report("start", step=begun, restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
try:
    count(begun)
except RallypointError:
    while True:
        signal.pause()  # a peer is gone: the coordinator will stop this round
