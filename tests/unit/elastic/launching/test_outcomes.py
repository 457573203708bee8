"""What the Python API takes for a failure."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.agent.core.held_round import ErrorRecord, HeldRound, LocalExit, LocalWorker, Stage
from rallypoint.elastic.agents.outcomes import find_failures, has_succeeded
from support.core.orders import run_order

ERROR = ErrorRecord("ValueError: bad", "", 100)
FOUND = LocalExit(None, None, 5_000, False, ERROR, "", error_file="/nowhere/error.json")
RECORDED = LocalWorker(0, 4_000, 10, recorded=FOUND)
ENDED = LocalExit(0, None, 6_000, False, None, "")


def held(stage: Stage, *workers: LocalWorker) -> HeldRound:
    return HeldRound(run_order(), workers, stage=stage)


def test_worker_that_has_recorded_an_error_and_runs_may_still_succeed() -> None:
    """The launch neither restarts nor ends for it before the round is stopped."""
    other = LocalWorker(1, 4_001, 10, ENDED)
    running = held(Stage.FAILED, RECORDED, other)
    stopping = held(Stage.STOPPING, RECORDED, other)
    survived = held(Stage.SUCCEEDED, RECORDED.ended(ENDED), other)

    assert [[], [0], []] == [list(find_failures(one)) for one in (running, stopping, survived)]
    assert [False, False, True] == [has_succeeded(one) for one in (running, stopping, survived)]


def test_worker_that_has_failed_fails_at_once() -> None:
    """Its exit tells, with or without a record."""
    failed = replace(ENDED, exit_code=1)

    found = find_failures(held(Stage.FAILED, RECORDED.ended(failed), LocalWorker(1, 4_001, 10)))
    assert {0: 1} == {rank: failure.exitcode for rank, failure in found.items()}
