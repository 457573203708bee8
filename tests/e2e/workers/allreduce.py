"""A small training loop: real torch, gloo, one all-reduce after the other, without end.

Reports `started` as obedient.py does, then `reduced` with the sum of the first all-reduce of its
round.
"""

import itertools
import json
import os
import socket
import sys
import time
from datetime import timedelta

LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.bind("")
LINE.connect("\0" + os.environ["E2E_MAILBOX"])


def report(kind: str, **fields: object) -> None:
    LINE.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())


report(
    "started",
    parent=os.getppid(),
    argv=sys.argv[1:],
    env=dict(os.environ),
    at_s=time.monotonic(),
)

import torch  # noqa: E402  # after the report: importing it takes longer than all the rest
import torch.distributed as dist  # noqa: E402

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
for step in itertools.count():
    ours = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(ours)
    if step == 0:
        report("reduced", sum=int(ours[0]))
    time.sleep(0.01)  # what a step computes
