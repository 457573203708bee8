"""`rallypoint barrier list` and `show`: who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from rallypoint.base.printable import to_printable_line
from rallypoint.base.ranges import join_ranges, to_ranges
from rallypoint.cli.operator.changes.options import Job
from rallypoint.cli.operator.failures import NotFound
from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import command
from rallypoint.cli.operator.views.words import describe_duration
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import scope_pb2

COLUMNS = ("BARRIER", "SCOPE", "GENERATION", "ARRIVED", "WAITING", "LEFT", "MISSING")
NAME_WIDTH = 12
"""Columns for a name in front of a value."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Show where the workers of a job wait for each other.")
    group.command("list")(list_barriers)
    group.command("show")(show)
    app.add_typer(group, name="barrier")


@command
def list_barriers(invocation: Invocation, job: Job) -> None:
    """List the barriers at which workers wait now, and who is missing.

    Names and participants are shown to everyone who may read the job; payloads are not.
    """
    found = list(invocation.client.list_barriers(job))
    empty = f"no worker of {job} waits at a barrier now"
    invocation.output.print_list(found, COLUMNS, describe_barrier, flexible="MISSING", empty=empty)


@command
def show(
    invocation: Invocation,
    job: Job,
    name: Annotated[str, typer.Argument(metavar="BARRIER", help="its name", show_default=False)],
) -> None:
    """Show who has arrived at a barrier, and who has not.

    Workers have to wait there now.
    """
    from rallypoint.cli.operator.explanations import suggest

    every = list(invocation.client.list_barriers(job))
    found = [one for one in every if one.name == name]
    if not found:
        near = suggest(name, [one.name for one in every])
        hint = near or recommend(
            "list those where one does: {rallypoint} barrier list {job}", job=job
        )
        raise NotFound(f"no worker of {job} waits at barrier {name!r} now; {hint}")
    if invocation.output.is_json:
        invocation.output.print_json(found)
        return
    for one in found:
        for line in describe_barrier_whole(one):
            invocation.output.print(line)


def describe_barrier(one: barrier_pb2.Barrier) -> Sequence[object]:
    """Return the row of a barrier: see `COLUMNS` of the command."""
    return (
        one.name,
        describe_scope(one.scope, one.round),
        one.generation,
        f"{one.arrived_count}/{one.expected_count}",
        describe_duration(one.age),
        describe_duration(one.time_left),
        describe_participants(one.missing) or _count_missing(one),
    )


def describe_barrier_whole(one: barrier_pb2.Barrier) -> Iterator[str]:
    """Yield the lines about one barrier."""
    facts = (
        ("barrier", one.name),
        ("scope", describe_scope(one.scope, one.round)),
        ("generation", str(one.generation)),
        ("arrived", f"{one.arrived_count} of {one.expected_count}"),
        ("", describe_participants(one.arrived)),
        ("missing", describe_participants(one.missing) or _count_missing(one)),
        ("waiting", f"{describe_duration(one.age)} since the first arrival"),
        ("", f"{describe_duration(one.since_last_arrival)} since the latest arrival"),
        ("fails", f"in {describe_duration(one.time_left)}, unless all have arrived by then"),
    )
    for name, text in facts:
        if text:
            yield f"{name:{NAME_WIDTH}}{to_printable_line(text)}"


def describe_participants(found: barrier_pb2.Participants) -> str:
    """Return participants in words: "ranks 0-3,7; node a"; empty: none is known."""
    parts = []
    if found.ranks:
        word = "rank" if len(found.ranks) == 1 else "ranks"
        parts.append(f"{word} {join_ranges(to_ranges(found.ranks))}")
    if found.nodes:
        word = "node" if len(found.nodes) == 1 else "nodes"
        parts.append(f"{word} {', '.join(found.nodes)}")
    if found.names:
        parts.append(", ".join(found.names))
    return "; ".join(parts)


def _count_missing(one: barrier_pb2.Barrier) -> str:
    left = one.expected_count - one.arrived_count
    return f"{left} more, no matter which" if left > 0 else ""


def describe_scope(scope: scope_pb2.Scope.ValueType, round: int) -> str:
    """Return what a barrier belongs to."""
    return "run" if scope == scope_pb2.SCOPE_RUN else f"round {round}"
