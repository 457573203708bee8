"""`rallypoint status --watch`: a view of one job that changes with it.

A thread follows the job, so a change is shown at once. Every second the view also reads the job's
facts without its nodes: they hold what time alone changes, such as how long a wait still lasts. If
no coordinator answers, the view keeps what it knows, says so, and waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from queue import Empty
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.base.values import describe_ms
from rallypoint.cli.operator.failures import NotFound
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.reads.following import OUTAGE_S, Change, Changes, follow
from rallypoint.cli.operator.reads.snapshot import (
    Snapshot,
    choose_view,
    read_some_nodes,
    take_snapshot,
)
from rallypoint.cli.operator.views.status import Extent, describe_change, render_status
from rallypoint.client.errors import RallypointError, Unavailable
from rallypoint.v1 import job_pb2, node_pb2

if TYPE_CHECKING:
    from rich.console import Console

    from rallypoint.client import Client

REFRESH_S = 1.0
TABLE_LINES = 2
"""Lines that a table of nodes has besides them: an empty one, and the headings."""
NODES_MIN = 4


def watch(invocation: Invocation, job_id: str, extent: Extent) -> None:
    """Show a job until its run has ended.

    Raises:
        RallypointError: there is no such job, or it may not be read.
        NotFound: it was deleted.
    """
    first = take_snapshot(invocation.client, job_id)
    view, after = choose_view(first.job), first.job.revision
    with (
        invocation.open_client(OUTAGE_S) as client,
        follow(client, job_id, view=view, after=after) as changes,
    ):
        if invocation.output.is_json or not invocation.output.has_cursor:
            _print_changes(invocation, first.job, changes)
        else:
            _show_live(invocation, client, first, changes, extent)


def _print_changes(invocation: Invocation, first: job_pb2.Job, changes: Changes) -> None:
    """Print a line for each change: for a pipe, a file, or a program."""
    output, change, line = invocation.output, Change(first), ""
    while change.job is not None:
        if output.is_json:
            output.print_json_line(change.job)
        elif (new := describe_change(change.job)) != line:
            line = new
            output.print(f"{time.strftime('%H:%M:%S')}  {line}")
        change = changes.get()
    _check_end(change)


def _show_live(
    invocation: Invocation,
    client: Client,
    first: Snapshot,
    changes: Changes,
    extent: Extent,
) -> None:
    """Show the job on the whole terminal; at the end, leave the last view below the prompt."""
    from rich.live import Live

    console = invocation.output.console
    job, nodes = first.job, first.nodes
    silent_since: float | None = None
    change = Change()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            note = _describe_outage(invocation, silent_since)
            fitting = fit(console, job, nodes, extent, note)
            live.update(render_status(job, nodes, fitting, note), refresh=True)
            try:
                change = changes.get(timeout=REFRESH_S)
            except Empty:
                try:
                    job, silent_since = _refresh(client, job), None
                except Unavailable:
                    silent_since = silent_since or time.monotonic() - OUTAGE_S
                continue
            if change.job is None:
                break
            job, nodes, silent_since = change.job, change.job.nodes, None
            if len(nodes) < job.node_count:
                nodes = _read_nodes(client, job)
    _check_end(change)
    console.print(render_status(job, nodes, extent))


def _refresh(client: Client, job: job_pb2.Job) -> job_pb2.Job:
    """Return the job as it is now, if nothing has changed but time."""
    now = client.get_job(job.job_id, view=job_pb2.JOB_VIEW_BASIC).job
    return now if now.revision == job.revision else job


def _read_nodes(client: Client, job: job_pb2.Job) -> Sequence[node_pb2.Node]:
    """Return the nodes of a large job that are worth showing; none if they cannot be read now."""
    try:
        return read_some_nodes(client, job)
    except RallypointError:
        return ()


def fit(
    console: Console,
    job: job_pb2.Job,
    nodes: Sequence[node_pb2.Node],
    extent: Extent,
    note: str = "",
) -> Extent:
    """Return how much fits on the terminal, which may have changed.

    Facts may take several lines each, so what is not a node is measured.
    """
    others = render_status(job, nodes, replace(extent, nodes=0), note)
    used = len(console.render_lines(others, pad=False))
    rows = console.size.height - used - TABLE_LINES
    return replace(extent, nodes=max(NODES_MIN, rows))


def _describe_outage(invocation: Invocation, since: float | None) -> str:
    if since is None:
        return ""
    ms = round(1000 * (time.monotonic() - since))
    where = invocation.target.endpoints
    return f"no coordinator has answered at {where} for {describe_ms(ms)}: this is what it knew"


def _check_end(change: Change) -> None:
    """Raise the error with which a watch has ended, if there is one."""
    if change.error is not None:
        if change.error.status == "NOT_FOUND":
            raise NotFound("the job was deleted")
        raise change.error
