"""Plug-ins of torch's group `torchrun.logs_specs`, installed as pip would install them."""

from __future__ import annotations

from pathlib import Path

TORCH = """
import enum

class Std(enum.IntFlag):
    NONE, OUT, ERR, ALL = 0, 1, 2, 3

class LogsSpecs:
    def __init__(self, log_dir=None, redirects=Std.NONE, tee=Std.NONE, local_ranks_filter=None):
        self.log_dir, self.redirects, self.tee = log_dir, redirects, tee
        self.filter = local_ranks_filter

class LogsDest:
    def __init__(self, stdouts, stderrs):
        self.stdouts, self.stderrs = stdouts, stderrs
        self.tee_stdouts, self.tee_stderrs, self.error_files = {}, {}, {}
"""
"""As much of torch as a plug-in needs; it imports at once."""
HEAD = """
import json, os, signal, socket, sys, time
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs, Std

def report(kind, **fields):
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.bind("")
    line.connect("\\0" + os.environ["E2E_MAILBOX"])
    line.send(json.dumps({"kind": kind, "pid": os.getpid(), **fields}).encode())
    return line

class Here(LogsSpecs):
    root_log_dir = "/dev/null"
"""


def install(folder: Path, body: str, *, with_torch: bool = True) -> dict[str, str]:
    """Install the class `Here`, whose methods are `body`, as `here`.

    Returns:
        Variables that let an interpreter find the plug-in, and the fake torch before the real one.
    """
    package = folder / "torch" / "distributed" / "elastic" / "multiprocessing"
    if with_torch:
        package.mkdir(parents=True)
        for parent in package.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()  # or the real one would count
        (package / "__init__.py").write_text(TORCH)
    info = folder / "here_logs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: here-logs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nhere = here_logs:Here\n")
    (folder / "here_logs.py").write_text(HEAD + body)
    return {"PYTHONPATH": str(folder)}
