"""Lists of what a job has: its nodes, its runs, and its rounds that have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from google.protobuf.message import Message

from rallypoint.server.api.jobs.job import (
    latest_run_message,
    past_round_message,
    past_run_message,
)
from rallypoint.server.contract.calls import require
from rallypoint.server.contract.node import node_message
from rallypoint.server.contract.pages import read_token
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.state.clocks import Clocks
from rallypoint.server.core.state.state import State
from rallypoint.v1 import job_pb2, node_pb2

_Entry = TypeVar("_Entry", bound=Message)
Rows = Iterator[tuple[str, Callable[[], _Entry]]]
"""What `fill_page` takes."""


def list_nodes(state: State, job: Job, token: str, now_ms: int) -> Rows[node_pb2.Node]:
    """Return the nodes after a token, in order of arrival, as they are in this turn.

    Raises:
        InvalidMessage: when the token is of another run, or none.
    """
    after = -1
    if token:
        run, after = map(int, read_token(token, r"(\d{1,16}):(\d{1,16})"))
        problem = f"is not of run {job.run}: read the first page again"
        require(run == job.run, "page_token", problem)
    found = [node for node in state.nodes_of(job.job_id) if node.arrival > after]
    found.sort(key=lambda node: node.arrival)  # a node that was renamed is the last of its job
    return (
        (f"{job.run}:{node.arrival}", partial(node_message, state, job, node, now_ms))
        for node in found
    )


def list_runs(job: Job, token: str, clocks: Clocks, now_ms: int) -> Rows[job_pb2.RunSummary]:
    """Return the runs of a job before a token, the latest first; `now_ms` is time of its journal.

    Raises:
        InvalidMessage: when the token is none.
    """
    runs = [(job.run, partial(latest_run_message, job, clocks, now_ms))]
    runs += [
        (run.run, partial(past_run_message, run, clocks, now_ms)) for run in reversed(job.runs)
    ]
    return _before(token, runs)


def list_rounds(
    job: Job, run: int, token: str, clocks: Clocks, now_ms: int
) -> Rows[job_pb2.RoundSummary]:
    """Return the ended rounds of a job before a token, the latest first; `run` 0: of all its runs.

    Raises:
        InvalidMessage: when the token is none.
    """
    rounds = [
        (one.number, partial(past_round_message, one, clocks, now_ms))
        for one in reversed(job.history)
        if run in (0, one.run)
    ]
    return _before(token, rounds)


def _before(token: str, rows: Iterable[tuple[int, Callable[[], _Entry]]]) -> Rows[_Entry]:
    """Return the rows whose numbers are below that of a token. Numbers only grow."""
    below = int(read_token(token, r"(\d{1,16})")[0]) if token else None
    return ((str(number), show) for number, show in rows if below is None or number < below)
