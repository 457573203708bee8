"""`rallypoint barrier list` and `show`: who waits for whom. They need no worker's token."""

from __future__ import annotations

from typing import Annotated

from rallypoint.cli.operator.failures import NotFound
from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, argument

COLUMNS = ("BARRIER", "SCOPE", "GENERATION", "ARRIVED", "WAITING", "LEFT", "MISSING")


@Command
def list_barriers(invocation: Invocation, job: Job) -> None:
    """List the barriers at which workers wait now, and who is missing.

    Names and participants are shown to everyone who may read the job; payloads are not.
    """
    from rallypoint.cli.operator.sharing.words import describe_barrier

    found = list(invocation.client.list_barriers(job))
    empty = f"no worker of {job} waits at a barrier now"
    invocation.output.print_list(found, COLUMNS, describe_barrier, flexible="MISSING", empty=empty)


@Command
def show(
    invocation: Invocation,
    job: Job,
    name: Annotated[str, argument("BARRIER", help="its name")],
) -> None:
    """Show who has arrived at a barrier, and who has not.

    Workers have to wait there now.
    """
    from rallypoint.cli.operator.explanations import suggest
    from rallypoint.cli.operator.sharing.words import describe_barrier_whole

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


GROUPS = {"barrier": {"list": list_barriers, "show": show}}
"""The commands of each group."""
