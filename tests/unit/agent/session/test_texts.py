"""A Hello fits into a message, however many workers have failed and whatever they have printed."""

from __future__ import annotations

import pytest

from rallypoint.agent.core.desired import Assignment, DesiredEnd, RoundHeader, RunOrder
from rallypoint.agent.core.held_round import ErrorRecord, HeldRound, LocalExit, LocalWorker, Stage
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.session.texts import TEXT_BYTES_MAX, WHOLE_WORKERS_MAX
from rallypoint.agent.session.translate import fill_snapshot, parse_desired
from rallypoint.base.limits import MESSAGE_CHARS_MAX, TEXT_CHARS_MAX, TRACEBACK_CHARS_MAX
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import node_pb2
from rallypoint.wire.channel import MESSAGE_BYTES_MAX

TAIL_CHARS_MAX = 4_096
WIDE = "\U0001f600"
"""A character of four bytes."""
NOW_MS = 100_000


def ended(
    rank: int,
    char: str,
    *,
    at_ms: int = 0,
    exit_code: int = 1,
    has_recorded: bool = True,
    was_signalled: bool = False,
) -> LocalWorker:
    """Return a worker that has ended, with texts and paths as long as they can be."""
    record = ErrorRecord(char * MESSAGE_CHARS_MAX, char * TRACEBACK_CHARS_MAX, 0)
    exit = LocalExit(
        exit_code=exit_code,
        signal=None,
        at_ms=at_ms,
        signalled_first=was_signalled,
        error=record if has_recorded else None,
        stderr_tail=char * (TAIL_CHARS_MAX - 1) + "!",
        error_file=char * TEXT_CHARS_MAX,
        stderr_file=char * TEXT_CHARS_MAX,
    )
    return LocalWorker(rank, pid=rank + 1, exit=exit)


def hello_of(workers: list[LocalWorker]) -> agent_pb2.Hello:
    """Return the Hello of a node whose workers these are."""
    header = RoundHeader(1, 1, len(workers), 1, "10.0.0.1", 29500, 0, 1, 1)
    order = RunOrder(header, Assignment(0, 0, len(workers), "default", 0, len(workers)), 3, "token")
    held = HeldRound(order, tuple(workers), Stage.FAILED)
    hello = agent_pb2.Hello()
    fill_snapshot(hello, AgentState(len(workers), 0, 0, None, held=held), NOW_MS)
    return hello


def is_whole(worker: node_pb2.Worker) -> bool:
    return len(worker.exit.stderr_tail) == TAIL_CHARS_MAX


@pytest.mark.parametrize(
    ("count", "char"), [(16, WIDE), (17, WIDE), (200, "x"), (200, WIDE), (4_096, WIDE)]
)
def test_hello_fits_into_a_message(count: int, char: str) -> None:
    """With whole texts of all, 200 workers would need 5 MB, or 20 MB of wide characters."""
    hello = hello_of([ended(rank, char) for rank in range(count)])

    assert hello.ByteSize() < MESSAGE_BYTES_MAX
    assert [worker.local_rank for worker in hello.held.workers] == list(range(count))


def test_first_failures_keep_their_texts() -> None:
    """Before later ones, before what follows a signal, and before workers that have succeeded."""
    workers = [
        *(ended(rank, "x", at_ms=0, exit_code=0, has_recorded=False) for rank in range(10)),
        *(ended(rank, "x", at_ms=1, was_signalled=True) for rank in range(10, 20)),
        *(ended(rank, "x", at_ms=100 - rank) for rank in range(20, 60)),
    ]
    hello = hello_of(workers)

    whole = [worker.local_rank for worker in hello.held.workers if is_whole(worker)]
    assert whole == list(range(60 - WHOLE_WORKERS_MAX, 60))


def test_error_is_cut_at_its_end_and_output_at_its_beginning() -> None:
    """Between characters; a traceback and a long path are left out."""
    workers = [ended(rank, WIDE, has_recorded=rank % 2 == 0) for rank in range(32)]
    hello = hello_of(workers)

    recorded, silent = (hello.held.workers[rank].exit for rank in (30, 31))
    assert recorded.error.message == WIDE * (TEXT_BYTES_MAX // 4)
    assert (recorded.error.traceback, recorded.stderr_tail, recorded.error_file) == ("", "", "")
    assert silent.stderr_tail == WIDE * (TEXT_BYTES_MAX // 4 - 1) + "!"


def test_few_workers_are_not_cut() -> None:
    """Up to the limit."""
    hello = hello_of([ended(rank, WIDE) for rank in range(WHOLE_WORKERS_MAX)])

    assert all(map(is_whole, hello.held.workers))


def test_reason_of_a_release_is_one_printable_line() -> None:
    """It comes from the coordinator, or from what poses as it, and ends on a terminal."""
    released = agent_pb2.Released(text="no\x1b[2J\x00\nforged\N{RIGHT-TO-LEFT OVERRIDE}")
    received = parse_desired(1, agent_pb2.DesiredState(released=released), NOW_MS)

    assert received is not None and isinstance(received.desired, DesiredEnd)
    assert received.desired.text == "released: no\N{REPLACEMENT CHARACTER} forged"
