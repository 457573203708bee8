"""A worker of coordinator_crash.py: it steps and logs, and does what it is asked to. No torch.

    worker.py INBOX [shares] [slow] [calm]

It reports `start`, `step`, `term` and `wrong` to INBOX, a socket for datagrams, and gets words
there: `exit CODE`, `die`, `hold`, `continue`, `write COUNT`. With `shares`, all ranks add to one
key of the run in each step, then meet, and check that each addition has counted exactly once. With
`slow`, it takes a moment to stop; with `calm`, it steps less often.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

STEP_S = 1.0 if "calm" in sys.argv[2:] else 0.25
"""Pause between two steps."""
TELL_S = 0.5
"""Time between two reports of steps."""
STOP_S = 0.2
"""How long a slow worker takes to stop."""
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LINE = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
LINE.bind("")
LINE.connect(sys.argv[1])


def report(kind: str, **facts: Any) -> None:
    """Report something to the benchmark."""
    named = {"kind": kind, "pid": os.getpid(), "rank": RANK, "world": WORLD, **facts}
    named["job"] = os.environ["RALLYPOINT_JOB_ID"]
    named["node"] = os.environ["RALLYPOINT_NODE"]
    named["local_rank"] = int(os.environ["LOCAL_RANK"])
    named["run"] = int(os.environ["RALLYPOINT_RUN"])
    named["round"] = int(os.environ["RALLYPOINT_ROUND"])
    LINE.send(json.dumps(named).encode())


def stop(_: int, __: FrameType | None) -> None:
    """End as the agent wants."""
    report("term")
    if "slow" in sys.argv[2:]:
        time.sleep(STOP_S)
    os._exit(0)


class Sharing:
    """Keys and barriers: every step leaves each rank with a number that no other one has."""

    def __init__(self) -> None:
        """Load the client."""
        from rallypoint import worker

        self._worker = worker
        self._run = worker.Scope.RUN
        self._written = 0

    def step(self, step: int) -> None:
        """Add to the key, meet, and compare what all have got."""
        mine = self._worker.kv.add("count", scope=self._run)
        got = [
            json.loads(one) for one in self._worker.all_gather(json.dumps([step, mine]).encode())
        ]
        expected = [[step, (step - 1) * WORLD + number] for number in range(1, WORLD + 1)]
        if sorted(got) != expected:
            report("wrong", text=f"step {step}: the ranks have got {sorted(got)}")

    def write(self, count: int) -> None:
        """Write keys one after the other, and read each one back."""
        for _ in range(count):
            self._written += 1
            text = str(self._written).encode()
            self._worker.kv.put(f"written/{RANK}", text, scope=self._run)
            if (found := self._worker.kv.get(f"written/{RANK}", scope=self._run)) != text:
                report("wrong", text=f"wrote {text!r}, and read {found!r}")


def take(words: list[str], sharing: Sharing | None) -> None:
    """Do what the benchmark asks for."""
    if words[0] == "exit":
        print(f"rank {RANK} fails as planned", file=sys.stderr, flush=True)
        os._exit(int(words[1]))
    elif words[0] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif words[0] == "hold":
        while LINE.recv(64).decode() != "continue":
            pass
    elif words[0] == "write" and sharing is not None:
        sharing.write(int(words[1]))


def work(sharing: Sharing | None) -> None:
    """Step until the end."""
    step, due_s, told_s = 0, time.monotonic(), 0.0
    while True:
        due_s = max(due_s + STEP_S, time.monotonic())
        while (left_s := due_s - time.monotonic()) > 0:
            LINE.settimeout(left_s)
            try:
                words = LINE.recv(64).decode().split()
            except TimeoutError:
                break
            LINE.settimeout(None)
            take(words, sharing)
        LINE.settimeout(None)
        step += 1
        if sharing is not None:
            sharing.step(step)
        print(f"rank {RANK} is at step {step}", flush=True)
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            report("step", step=step)


def main() -> None:
    """Report the start, and work."""
    signal.signal(signal.SIGTERM, stop)
    report(
        "start",
        restarts=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
        token=os.environ["RALLYPOINT_WORKER_TOKEN"],
    )
    sharing = Sharing() if "shares" in sys.argv[2:] else None
    try:
        work(sharing)
    except Exception as error:  # the benchmark has to know, whatever it is
        report("wrong", text=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main()
