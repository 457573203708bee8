"""What the agent tells a worker in its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from rallypoint.base import worker_variables
from rallypoint.client.errors import RallypointError

_MEMBERSHIP = (
    worker_variables.COORDINATOR,
    worker_variables.JOB_ID,
    worker_variables.WORKER_TOKEN,
    worker_variables.EPOCH,
)
_PLACE = (worker_variables.ROUND, worker_variables.LOCAL_RANK)
_LAUNCHER = "`rallypoint agent`"


class NotAWorker(RallypointError):
    """This process was not started by an agent."""


class Membership(NamedTuple):
    """Which round this process is a worker of, and where the coordinator is."""

    coordinator: str
    """Its host:port, or those of several with commas in between."""
    job_id: str
    token: str
    """Proof that the worker belongs to its round. It is a secret."""
    epoch: int
    """Of the coordinator that formed the round."""


class Environment(NamedTuple):
    """The variables of one worker that matter here."""

    coordinator: str
    job_id: str
    token: str
    epoch: int
    """These four are those of `Membership`."""
    rank: int
    world_size: int
    notice_file: str
    """It exists while something is announced."""
    mark_pipe: str
    """The FIFO in which the agent reads marks; empty: it reads none."""
    mark_head: str
    """How each mark in it begins: the round, and the local rank."""


def read_membership(
    environ: Mapping[str, str] = os.environ, launcher: str = _LAUNCHER
) -> Membership:
    """Return what the variables say.

    Args:
        environ: the variables.
        launcher: what sets them, for people.

    Raises:
        NotAWorker: when one of them is missing.
    """
    missing = [name for name in _MEMBERSHIP if not environ.get(name)]
    if missing:
        raise NotAWorker(f"{missing[0]} is not set: start this script with {launcher}")
    coordinator, job_id, token, epoch = (environ[name] for name in _MEMBERSHIP)
    return Membership(coordinator, job_id, token, int(epoch))


def read_environment(environ: Mapping[str, str] = os.environ) -> Environment:
    """Return what the variables say.

    Raises:
        NotAWorker: when one of them is missing.
    """
    try:
        return Environment(
            *read_membership(environ),
            rank=int(environ["RANK"]),
            world_size=int(environ["WORLD_SIZE"]),
            notice_file=environ[worker_variables.NOTICE_FILE],
            mark_pipe=environ.get(worker_variables.MARK_PIPE, ""),
            mark_head=" ".join(environ.get(name, "") for name in _PLACE),
        )
    except KeyError as missing:
        name = missing.args[0]
        raise NotAWorker(f"{name} is not set: start this script with {_LAUNCHER}") from None
