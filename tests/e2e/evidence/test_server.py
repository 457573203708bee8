"""Torch's worker server leaves the program as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rallypoint.agent.in_worker import PRELOAD

LIMIT_S = 120.0
PROGRAM = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
import rallypoint_armed
import torch.distributed

def list_threads():
    return {int(one) for one in os.listdir("/proc/self/task")}

def is_blocked(thread, signum):
    for line in open(f"/proc/self/task/{thread}/status"):
        if line.startswith("SigBlk"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)

signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
before, processors = list_threads(), os.sched_getaffinity(0)
rallypoint_armed.serve(sys.argv[2])
fresh = list_threads() - before
ignored = int(next(x for x in open("/proc/self/status") if x.startswith("SigIgn")).split()[1], 16)
print(json.dumps({
    "threads": len(fresh),
    "open": [one for one in fresh if not is_blocked(one, signal.SIGUSR2)],
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "ignores": bool(ignored >> (signal.SIGPIPE - 1) & 1),
    "bound": os.sched_getaffinity(0) != processors,
    "listens": os.path.exists(sys.argv[2]),
}))
"""


def test_program_is_as_before(tmp_path: Path) -> None:
    """Its threads take no signals, are few, and change neither SIGPIPE nor the processors."""
    socket = str(tmp_path / "w.sock")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PRELOAD, socket],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    found = json.loads(done.stdout)

    assert found["listens"] and 0 < found["threads"] < 12
    assert found["open"] == []
    assert found["mask"] == [10]
    assert not found["ignores"] and not found["bound"]
    assert "Server listening" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["w.sock"]
