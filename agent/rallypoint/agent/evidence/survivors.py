"""Logs where workers stand that a stop signal has not ended, before SIGKILL hides it."""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.agent.evidence.collect import STILL
from rallypoint.agent.evidence.target import Target
from rallypoint.base.log import get_logger
from rallypoint.base.tracebacks import describe_place
from rallypoint.v1 import evidence_pb2

log = get_logger()

LINES_MAX = 8
"""Workers with a line each; the rest of a node are usually in the same place."""
THEN = "SIGKILL"
UNDESCRIBED = "undefined"
"""How torch describes a group without a description."""


def log_survivors(
    round: int, targets: Sequence[Target], evidence: Sequence[evidence_pb2.RankEvidence]
) -> None:
    """Log a line for each of the first LINES_MAX workers, and how many more there are.

    Args:
        round: number of the round.
        targets: the workers that still live, by rank.
        evidence: what is known about workers of this node, also about those that have ended.
    """
    by_pid = {one.pid: one for one in evidence}
    for target in targets[:LINES_MAX]:
        log.warning(
            "worker_survived_stop",
            round=round,
            rank=target.rank,
            local_rank=target.local_rank,
            pid=target.pid,
            **describe(by_pid.get(target.pid)),
            then=THEN,
        )
    more = len(targets) - LINES_MAX
    if more > 0:
        log.warning("more_workers_survived_stop", round=round, count=more, then=THEN)


def describe(one: evidence_pb2.RankEvidence | None) -> dict[str, str]:
    """Return where a worker stands, as far as it is known.

    Returns:
        at: the line of its program, such as "train.py:7 load_batch".
        state: why the kernel does not let it end.
        waits_in: the collective, such as "gloo:all_reduce number 6 of default_pg".
        why: why none of them is known.
    """
    if one is None:
        return {"why": "it could not be looked at in time"}
    frames = next((thread.frames for thread in one.threads if thread.is_main), ())
    known = {
        "at": describe_place(tuple(frames)),
        "state": _describe_state(one),
        "waits_in": next(filter(None, map(_describe_wait, one.groups)), ""),
    }
    told = {name: text for name, text in known.items() if text}
    return told or {"why": next(iter(one.gaps), "its main thread has no Python stack")}


def _describe_state(one: evidence_pb2.RankEvidence) -> str:
    if one.state == evidence_pb2.PROCESS_STATE_UNINTERRUPTIBLE:
        place = f" ({one.waits_in})" if one.waits_in else ""
        return f"it waits in the kernel{place}, where no signal reaches it"
    return STILL.get(one.state, "")


def _describe_wait(group: evidence_pb2.GroupProgress) -> str:
    """Return the first collective of a group that a worker has entered and not completed."""
    if group.completed >= group.entered:
        return ""
    number = group.completed + 1
    operations = (one.operation for one in group.latest if one.number == number)
    operation = next(operations, "") or "collective"
    is_described = group.description not in ("", UNDESCRIBED)
    name = group.description if is_described else f"group {group.name}"
    return f"{operation} number {number} of {name}"
