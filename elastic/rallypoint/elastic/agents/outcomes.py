"""What became of workers, as an agent returns it: by global rank, with torch's `ProcessFailure`."""

from __future__ import annotations

import time
from typing import Any

from rallypoint.agent.core.held_round import HeldRound, LocalWorker
from rallypoint.agent.torchelastic.last_round import has_failed
from rallypoint.agent.torchelastic.root_cause import exit_number, to_torch_form
from rallypoint.elastic.errors import ProcessFailure
from rallypoint.embedded.ended import Ended
from rallypoint.v1 import job_pb2, verdict_pb2


def find_failures(held: HeldRound) -> dict[int, ProcessFailure]:
    """Return the workers of a round that have failed, by global rank.

    A worker that has recorded an error and still runs may end with 0. It has failed for good when
    the round is stopped.
    """
    first = held.order.assignment.first_rank
    return {
        first + worker.local_rank: _describe(worker, held.start_failure)
        for worker in held.workers
        if has_failed(worker) and (worker.exit is not None or held.is_stopping)
    }


def has_succeeded(held: HeldRound) -> bool:
    """Return whether all workers of a round have exited with 0, none of them after an error."""
    return all(
        one.exit is not None and one.exit.exit_code == 0 and one.exit.error is None
        for one in held.workers
    )


def _describe(worker: LocalWorker, start_failure: str | None) -> ProcessFailure:
    assert worker.outcome is not None
    failure = ProcessFailure.from_exit(worker.local_rank, worker.pid, worker.outcome)
    if not worker.pid and start_failure is not None:
        failure.message = start_failure
    return failure


def find_first_failure(ended: Ended) -> dict[int, ProcessFailure]:
    """Return the worker that failed first, on whichever node; empty: no worker did."""
    finished = ended.finished
    if finished is None or not finished.verdict.HasField("culprit"):
        return {}
    return {finished.verdict.culprit.rank: _describe_culprit(finished.verdict)}


def _describe_culprit(verdict: verdict_pb2.Verdict) -> ProcessFailure:
    worker, exit = verdict.culprit, verdict.culprit.exit
    now_s = time.time()  # noqa: TID251  # a time stamp that people read
    time_s = exit.failed_at.seconds if exit.HasField("failed_at") else int(now_s)
    text = exit.error.message if exit.HasField("error") else verdict.text
    stack = exit.error.traceback if exit.HasField("error") else exit.stderr_tail
    failure = ProcessFailure(worker.local_rank, worker.pid, exit_number(exit), "")
    data: dict[str, Any] = to_torch_form(text, stack, time_s, exit_number(exit))
    failure.error_file_data, failure.message = data, data["message"]
    failure.timestamp = time_s
    return failure


def has_failed_for_good(ended: Ended) -> bool:
    """Return whether the run has failed, rather than having been cancelled or abandoned."""
    finished = ended.finished
    return finished is not None and finished.outcome == job_pb2.OUTCOME_FAILED
