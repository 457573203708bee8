"""A worker that counts steps, and saves them once a node drains: `counting.py CHECKPOINT [stays]`.

After each step all ranks meet, and agree on whether to save; a step counts when all have come. Once
rank 0 has saved, the workers of a node that drains leave, unless they stay. A lost step is one that
was done and is in no checkpoint.

It reports `started` as obedient.py does, with the step at which it begins, then `stepped`, `left`
and `signalled`.
"""

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
CHECKPOINT = Path(sys.argv[1])
LEAVES = "stays" not in sys.argv[2:]
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.bind("")
LINE.connect("\0" + os.environ["E2E_MAILBOX"])


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())


def came(signum: int, _: FrameType | None) -> None:
    """Report a signal. A stop ends the worker; a drain is also announced by the file."""
    report("signalled", signum=signum)
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
        report("stepped", step=step)
        if not saves:
            continue
        if RANK == 0:
            save(step)
        worker.barrier("saved")
        if LEAVES and any(one.is_leaving for one in worker.notices()):
            report("left", step=step)
            os._exit(0)


for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, came)
begun = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
report(
    "started",
    parent=os.getppid(),
    argv=sys.argv[1:],
    env=dict(os.environ),
    at_s=time.monotonic(),
    step=begun,
)
try:
    count(begun)
except RallypointError:
    while True:
        signal.pause()  # a peer is gone: the coordinator will stop this round
except Exception as error:
    report("wrong", text=repr(error))
    raise
