"""What a training script shares with the other workers of its round.

    from rallypoint import worker

    worker.barrier()
    sizes = worker.all_gather(b"1234")
    worker.mark("imported")
    if worker.should_checkpoint(): ...
    worker.progress(step)

It needs neither torch nor a process group, and loads gRPC at the first call that uses the network.
Outside a Rallypoint worker every function raises `NotAWorker`.

Threads may call these functions, though at one barrier a rank has one call at a time. A process
that is forked after the first such call may only look at notices: gRPC does not survive a fork.
"""

from __future__ import annotations

from rallypoint.client import errors
from rallypoint.client.values import Scope
from rallypoint.worker import milestones
from rallypoint.worker.environment import NotAWorker, read_environment
from rallypoint.worker.keys import KeyValues
from rallypoint.worker.milestones import Milestone
from rallypoint.worker.notices import Notice, read_notices

__all__ = [
    "NotAWorker",
    "Notice",
    "Scope",
    "all_gather",
    "barrier",
    "errors",
    "kv",
    "mark",
    "notice",
    "notices",
    "progress",
    "should_checkpoint",
]

TIMEOUT_S = 600.0
"""How long ranks wait for each other unless the caller says otherwise."""

kv = KeyValues()
"""The keys of this worker's round or run."""


def barrier(name: str = "barrier", *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until every rank of the round has called this with the same name.

    The name can be used again and again, also in a loop.

    Raises:
        BarrierBroken: when a rank is lost, the round is stopped or the time is over; it names who
            is missing.
        Forgotten: when the coordinator has started again without its memory.
        RallypointError: when it fails otherwise.
    """
    all_gather(b"", name=name, timeout_s=timeout_s)


def all_gather(
    payload: bytes, *, name: str = "all_gather", timeout_s: float = TIMEOUT_S
) -> list[bytes]:
    """Wait as at a barrier; return the payload of every rank, by rank.

    Args:
        payload: at most 16 KiB, and 128 KiB from all ranks together.
        name: the same on every rank.
        timeout_s: how long to wait.

    Raises:
        RallypointError: as `barrier` does.
    """
    from rallypoint.worker.session import current

    return current().gather(name, payload, timeout_s)


def notices() -> tuple[Notice, ...]:
    """Return what the agent has announced, soonest first. It takes a few microseconds."""
    return read_notices(read_environment().notice_file)


def notice() -> Notice | None:
    """Return the notice that concerns this worker most; None: there is none.

    It is the drain of this worker's node, else the soonest one.
    """
    found = notices()
    leaving = (one for one in found if one.is_leaving)
    return next(leaving, found[0] if found else None)


def should_checkpoint(*, timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether to save a checkpoint now: the same answer on every rank at the same call.

    It is true once for every new notice, such as the drain of a node. Every rank has to call it
    equally often, for example after every step; all wait for the slowest. It survives a
    restart of the coordinator.

    Raises:
        BarrierBroken: as `barrier` does.
        RallypointError: when it fails otherwise.
    """
    from rallypoint.worker.session import current

    return current().should_checkpoint(timeout_s)


def mark(name: Milestone) -> None:
    """Note that this worker has come so far before its first step, for the timeline of its round.

    It takes microseconds and never fails. The first call of a process with a name counts. The agent
    learns it at once, and reports it when the last worker of the node has come so far. The
    coordinator shows when the last worker of the round has.

    Args:
        name: "imported", after the imports of the script, or "process_group", once
            `init_process_group` has returned; `init_method="rallypoint://"` does that one itself.

    Raises:
        ValueError: for any other name.
    """
    read_environment()
    milestones.note(name)


def progress(step: int) -> None:
    """Note that training has reached a step, counted over all rounds from 1 on.

    A round that reaches a higher step than any before has made progress: the pauses before restarts
    and the limits on failures in a row start again. Call it on every rank or on rank 0; only the
    calls of rank 0 count. It reports at most once a second, and waits for nothing.
    """
    if read_environment().rank == 0:
        from rallypoint.worker.session import current

        current().progress.note(step)
    milestones.tell_agent()
