"""What the log says about a worker that a stop signal has not ended."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.evidence.survivors import LINES_MAX, describe, log_survivors
from rallypoint.agent.evidence.target import Target
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.v1 import evidence_pb2 as pb2

PLACE = pb2.ThreadStack(
    is_main=True,
    frames=[
        pb2.Frame(function="wait", file="/usr/lib/python3.11/threading.py", line=327),
        pb2.Frame(function="load_batch", file="/home/ada/train.py", line=7),
        pb2.Frame(function="main", file="/home/ada/train.py", line=90),
    ],
)
OTHER = pb2.ThreadStack(frames=[pb2.Frame(function="prefetch", file="/home/ada/data.py", line=1)])
STUCK = pb2.PROCESS_STATE_UNINTERRUPTIBLE


def group(name: str, description: str, entered: int, completed: int) -> pb2.GroupProgress:
    """Return progress of which the records of the last two collectives are kept."""
    latest = [
        pb2.Collective(number=number, operation=f"gloo:{what}")
        for number, what in ((entered, "barrier"), (entered - 1, "all_reduce"))
    ]
    return pb2.GroupProgress(
        name=name, description=description, entered=entered, completed=completed, latest=latest
    )


CASES = {
    "innermost line of its program": (
        pb2.RankEvidence(threads=[PLACE, OTHER], state=pb2.PROCESS_STATE_SLEEPING),
        {"at": "train.py:7 load_batch"},
    ),
    "kernel holds it": (
        pb2.RankEvidence(threads=[PLACE], state=STUCK, waits_in="nfs_wait"),
        {
            "at": "train.py:7 load_batch",
            "state": "it waits in the kernel (nfs_wait), where no signal reaches it",
        },
    ),
    "kernel does not say where": (
        pb2.RankEvidence(state=STUCK, gaps=["no stacks: it has not written them in time"]),
        {"state": "it waits in the kernel, where no signal reaches it"},
    ),
    "stopped by a signal": (
        pb2.RankEvidence(state=pb2.PROCESS_STATE_STOPPED, gaps=["no stacks: a signal"]),
        {"state": "a signal has stopped it"},
    ),
    "first collective that it has not completed": (
        pb2.RankEvidence(
            groups=[group("1", "tp", 3, 3), group("0", "default_pg", 7, 5)], threads=[PLACE]
        ),
        {
            "at": "train.py:7 load_batch",
            "waits_in": "gloo:all_reduce number 6 of default_pg",
        },
    ),
    "group without a description, record lost": (
        pb2.RankEvidence(groups=[group("4", "undefined", 9, 3)]),
        {"waits_in": "collective number 4 of group 4"},
    ),
    "nothing is known": (
        pb2.RankEvidence(threads=[OTHER], gaps=["no stacks: the worker is not armed", "more"]),
        {"why": "no stacks: the worker is not armed"},
    ),
    "it was not in time": (None, {"why": "it could not be looked at in time"}),
}


@pytest.mark.parametrize("case", CASES)
def test_place_of_a_survivor(case: str) -> None:
    """Only what is known is there; else the reason why nothing is."""
    one, expected = CASES[case]

    assert describe(one) == expected


def target(local_rank: int) -> Target:
    rank, pid = 8 + local_rank, 100 + local_rank
    return Target(1, rank, local_rank, 64, pid, "", WorkerOutput(""))


def test_only_those_that_still_live_are_logged() -> None:
    """A worker that has ended during the look has obeyed."""
    evidence = [pb2.RankEvidence(rank=8 + one, pid=100 + one, threads=[PLACE]) for one in (0, 1)]
    with capture_logs() as lines:
        log_survivors(3, [target(1)], evidence)

    assert lines == [
        {
            "event": "worker_survived_stop",
            "log_level": "warning",
            "round": 3,
            "rank": 9,
            "local_rank": 1,
            "pid": 101,
            "at": "train.py:7 load_batch",
            "then": "SIGKILL",
        }
    ]


@pytest.mark.parametrize(("count", "more"), [(LINES_MAX, []), (LINES_MAX + 3, [3])])
def test_lines_are_bounded(count: int, more: list[int]) -> None:
    """The rest is a number."""
    with capture_logs() as lines:
        log_survivors(3, [target(one) for one in range(count)], [])

    named = [line for line in lines if line["event"] == "worker_survived_stop"]
    rest = [line["count"] for line in lines if line["event"] == "more_workers_survived_stop"]
    assert (len(named), rest) == (LINES_MAX, more)
