"""A verdict: what failed first, where and why, what followed, and what the coordinator did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import TYPE_CHECKING

from rallypoint.base.printable import to_printable_lines
from rallypoint.base.ranges import join_ranges
from rallypoint.cli.failed_workers import advise_interpreter
from rallypoint.cli.operator.output import clean, make_table
from rallypoint.cli.operator.views.words import (
    describe_cause,
    describe_count,
    describe_duration,
    describe_exit,
    describe_time,
)
from rallypoint.v1 import verdict_pb2

if TYPE_CHECKING:
    from rich.console import RenderableType

LABEL_COLUMNS = 10
COLUMNS = ("RANKS", "ENDED BY", "ERROR")
RANGES_MAX = 12
"""Ranges of ranks in one cell."""


def render_verdict(
    verdict: verdict_pb2.Verdict,
    title: str,
    zone: tzinfo | None = None,
    *,
    has_succeeded: bool = False,
) -> RenderableType:
    """Return a verdict.

    Args:
        verdict: what the coordinator has found.
        title: the job and the run.
        zone: the time zone of the reader; None: the local one.
        has_succeeded: the run has, after this failure.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(min_width=LABEL_COLUMNS, no_wrap=True, style="bold")
    facts.add_column(overflow="fold")
    for name, value in _facts(verdict, zone):
        facts.add_row(name, Text(clean(value)))
    between = " succeeded; its last failure was: " if has_succeeded else ": "
    failure = (clean(verdict.text), "" if has_succeeded else "red")
    head = Text.assemble((clean(title), "bold"), between, failure)
    parts: list[RenderableType] = [head, Text(), facts]
    for name, text in _texts(verdict):
        parts += [Text(), Text(name, style="bold")]
        parts += [Text(f"  {line}") for line in to_printable_lines(text.rstrip()).split("\n")]
    rows = [_row(one) for one in verdict.groups]
    if verdict.collateral_count and rows:
        # What failed first may be no worker: a lost node is in no row of the table.
        count = verdict.collateral_count + verdict.HasField("culprit")
        shown = sum(one.count for one in verdict.groups)
        of = f"{shown} of" if shown < count else "all"
        name = f"{of} {describe_count(count, 'failure')} of workers in the round"
        parts += [Text(), Text(name, style="bold"), make_table(COLUMNS, rows, flexible="ERROR")]
    return Group(*parts)


def _facts(verdict: verdict_pb2.Verdict, zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    yield "cause", describe_cause(verdict.cause)
    if verdict.round:
        yield "round", str(verdict.round)
    if verdict.HasField("culprit"):
        yield from _culprit(verdict.culprit, zone)
    elif verdict.node_name:
        yield "node", verdict.node_name
    if verdict.evidence:
        yield "because", verdict.evidence
    if verdict.consequence == verdict_pb2.VERDICT_CONSEQUENCE_UNDECIDED:
        yield "then", "not decided yet: other nodes are still stopping"
    elif verdict.consequence_text:
        yield "then", verdict.consequence_text


def _culprit(worker: verdict_pb2.FailedWorker, zone: tzinfo | None) -> Iterator[tuple[str, str]]:
    exit = worker.exit
    host = f" (host {worker.host_name})" if worker.host_name else ""
    yield "worker", f"rank {worker.rank}, local rank {worker.local_rank}, pid {worker.pid}"
    yield "node", f"{worker.node_name}{host}"
    yield "ended by", describe_exit(exit)
    if exit.HasField("failed_at"):
        yield "time", describe_time(exit.failed_at, zone)
    yield "ran for", describe_duration(exit.run_time)
    if worker.command:
        yield "command", worker.command
    if advice := advise_interpreter(worker):
        yield "python", advice
    if exit.error_file:
        yield "error file", exit.error_file
    if exit.stderr_file:
        yield "log", exit.stderr_file


def _texts(verdict: verdict_pb2.Verdict) -> Iterator[tuple[str, str]]:
    """Yield what the worker has recorded or printed, with a heading."""
    exit = verdict.culprit.exit
    recorded = exit.error.traceback or exit.error.message
    if recorded:
        yield "traceback" if exit.error.traceback else "error", recorded
    elif exit.stderr_tail:
        yield "end of standard error", exit.stderr_tail


def _row(group: verdict_pb2.FailureGroup) -> Sequence[object]:
    spans = [(one.first, one.last) for one in group.ranks]
    shown = sum(last - first + 1 for first, last in spans[:RANGES_MAX])
    more = f" and {group.count - shown} more" if group.count > shown else ""
    error = next((line for line in reversed(group.error.splitlines()) if line.strip()), "")
    kind = " (of a lost peer)" if group.victim else ""
    return (join_ranges(spans[:RANGES_MAX]) + more, group.exit_text, f"{error.strip()}{kind}")
