"""`rallypoint events`: what has happened to jobs, and what happens."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, argument, option
from rallypoint.client.errors import UnknownJob
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rallypoint.cli.operator.reads.left import LeftJobs
    from rallypoint.client import Client

PREFIX = "EVENT_KIND_"


@Command
def events(
    invocation: Invocation,
    job: Annotated[str, argument("JOB", help="name of a job; without it: all jobs")] = "",
    follows: Annotated[
        bool, option("--follow", "-f", help="also print each new event, until Ctrl-C")
    ] = False,
    last: Annotated[
        int | None,
        option("--last", "-n", metavar="N", min=0, help="only the last N that are kept"),
    ] = None,
    kinds: Annotated[
        list[str] | None,
        option("--kind", metavar="KIND", help="only events such as round-sealed; may be repeated"),
    ] = None,
) -> None:
    """Print what has happened to a job, or to all jobs, the oldest first.

    The coordinator keeps the latest 512 events of each job, and keeps those of a job that
    is gone. --output json prints an array, or with --follow an object on each line.
    """
    from rallypoint.cli.operator.reads.left import LeftJobs
    from rallypoint.cli.operator.views.events import describe_event, hang

    numbers = [_read_kind(text) for text in kinds or ()]
    output, client = invocation.output, invocation.reader(job)
    pages = client.list_events(job, kinds=numbers)
    kept = deque(pages, maxlen=last)

    if not kept and job:
        _check_known(client, job)
    if output.is_json and not follows:
        output.print_json(list(kept))
        return

    def show(event: events_pb2.Event) -> None:
        if output.is_json:
            output.print_json_line(event)
        else:
            line = describe_event(event, has_job=not job)
            output.print(hang(line) if line.cell_len > output.console.width else line)

    for event in kept:
        show(event)
    if not follows or isinstance(client, LeftJobs):
        if not kept and last != 0:
            output.note(f"no events of {job}" if job else "no events")
        return
    assert not isinstance(pages, list)
    page = pages.latest
    with client.watch_events(job, kinds=numbers, after=page.position or page.last_sequence) as new:
        for event in new:
            show(event)


def _check_known(client: Client | LeftJobs, job: str) -> None:
    """Check that there is a job, or was one that has left events.

    Raises:
        UnknownJob: there is none.
    """
    try:
        client.get_job(job, view=job_pb2.JOB_VIEW_BASIC)
    except UnknownJob:
        if not any(client.list_events(job, kinds=())):
            raise


def _read_kind(text: str) -> events_pb2.EventKind.ValueType:
    """Return a kind of events.

    Raises:
        CommandFailed: there is none with this name.
    """
    name = PREFIX + text.upper().replace("-", "_").replace(" ", "_")
    if name in events_pb2.EventKind.keys() and name != f"{PREFIX}UNSPECIFIED":
        return events_pb2.EventKind.Value(name)
    import difflib  # slow to import, and only an error needs it

    known = [to_word(one) for one in events_pb2.EventKind.keys()[1:]]
    near = difflib.get_close_matches(text, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
    raise CommandFailed(f"there is no kind {text!r} of events; {hint}", EXIT_USAGE)


def to_word(name: str) -> str:
    """Return a kind as the option takes it: `round-sealed`."""
    return name.removeprefix(PREFIX).lower().replace("_", "-")
