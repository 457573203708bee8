"""How a command proves that it acts for a worker: keys belong to the workers of a job.

The coordinator gives every worker a token, in its environment, and shows keys to workers alone, not
to operators. So the command takes the token of a worker: of the one in whose shell it runs, or of a
process of this host.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from rallypoint.base import worker_variables
from rallypoint.cli.operator.failures import EXIT_NOT_ALLOWED, CommandFailed, NotFound

TOKEN, EPOCH = worker_variables.WORKER_TOKEN, worker_variables.EPOCH
PRELOADED = "RALLYPOINT_PRELOAD_FDS"
"""In what the kernel shows of a forked worker: that is what its forkserver was started with."""
_PROC = Path("/proc")


class WorkerProof(Struct, frozen=True):
    """What the environment of a worker proves. Its token is never shown."""

    token: str
    epoch: int
    """Of the coordinator that has started the worker; 0: unknown."""

    def __repr__(self) -> str:
        """Return it without the token."""
        return f"WorkerProof(token=***, epoch={self.epoch})"


def find_proof(
    pid: int, environment: Mapping[str, str] = os.environ, proc: Path = _PROC
) -> WorkerProof:
    """Return the proof of a worker.

    Args:
        pid: a process of this host; 0: the worker in whose environment the command runs.
        environment: of this process.
        proc: where the kernel shows processes.

    Raises:
        CommandFailed: there is no such process, it is not a worker, or it is another user's.
    """
    if not pid:
        return _read(environment, "")
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no process {pid} on this host") from None
    except PermissionError:
        text = f"process {pid} belongs to another user: run this as that user, or as root"
        raise CommandFailed(text, EXIT_NOT_ALLOWED) from None
    except OSError as error:
        raise CommandFailed(f"process {pid} cannot be read: {error.strerror}") from None
    parts = (one.partition("=") for one in raw.decode("utf-8", "replace").split("\0"))
    found = {name: value for name, _, value in parts}
    if PRELOADED in found:
        text = f"process {pid} was forked with --preload, and no one can read its token: "
        text += f"name a program that a worker has started, --worker PID, or set {TOKEN}"
        raise CommandFailed(text, EXIT_NOT_ALLOWED)
    return _read(found, f"process {pid} is not a worker: ")


def _read(environment: Mapping[str, str], whose: str) -> WorkerProof:
    token, epoch = environment.get(TOKEN, ""), environment.get(EPOCH, "")
    if not token:
        what = whose or "keys are for the workers of a job alone: "
        text = f"{what}name one that runs here, --worker PID, or set {TOKEN}"
        raise CommandFailed(text, EXIT_NOT_ALLOWED)
    return WorkerProof(token, int(epoch) if epoch.isdecimal() else 0)
