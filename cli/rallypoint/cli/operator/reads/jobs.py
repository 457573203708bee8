"""`rallypoint jobs`: one line for each job."""

from __future__ import annotations

from typing import Annotated

from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, argument, option

DISPENSABLE = ("ROUND", "RUN", "WORKERS", "RESTARTS", "AGE", "NODES")
"""In a narrow terminal, the first ones first: REASON is what one looks for."""
COLUMNS = ("JOB", "RUN", "STATE", "NODES", "WORKERS", "ROUND", "RESTARTS", "AGE", "REASON")


@Command
def jobs(
    invocation: Invocation,
    prefix: Annotated[str, argument("PREFIX", help="only jobs whose names begin with this")] = "",
    is_open: Annotated[bool, option("--open", help="only jobs that have not ended")] = False,
) -> None:
    """List the jobs of a coordinator: those that wait, those that run, those that have ended.

    The newest of each come first. AGE is the time since a run began, or how long ago it ended.
    REASON says what a job waits for, or what failed last. A narrow terminal shows fewer columns.
    JSON has every job with all its fields, ordered by name.
    """
    from rallypoint.cli.operator.views.words import OPEN_PHASES, describe_job, find_urgency

    phases = OPEN_PHASES if is_open else ()
    found = list(invocation.reader().list_jobs(prefix=prefix, phases=phases))
    which = f" whose names begin with {prefix!r}" if prefix else ""
    empty = f"{invocation.target.endpoints} has no jobs{which}"
    if not invocation.output.is_json:
        found.sort(key=find_urgency)
    invocation.output.print_list(
        found,
        COLUMNS,
        describe_job,
        flexible="REASON",
        empty=empty,
        is_cropped=True,
        dispensable=DISPENSABLE,
    )
