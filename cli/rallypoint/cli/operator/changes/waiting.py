"""`--wait`: a command that returns when its change has come true, and shows how far it is.

On a terminal a line shows the job as it is, and goes away at the end. In a pipe each new state is a
line. The wait changes nothing: Ctrl-C and the end of its time leave the change as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty
from typing import TYPE_CHECKING

from rallypoint.base.values import describe_ms
from rallypoint.cli.operator.changes.goals import Goal, Progress, Standing
from rallypoint.cli.operator.failures import CommandFailed, NotReached, TimedOut
from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.output import Output, clean
from rallypoint.cli.operator.reads.following import OUTAGE_S, Change, Changes, follow
from rallypoint.client.errors import Unavailable, UnknownJob
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rallypoint.client import Client

REFRESH_S = 1.0
BEFORE_S = 5.0
"""How long before a wait the run may have ended that the same command has changed."""


def wait_for(invocation: Invocation, job_id: str, goal: Goal, limit_s: float) -> None:
    """Wait until a change has come true.

    Raises:
        TimedOut: it has not, in that time.
        CommandFailed: it cannot any more.
        RallypointError: the job may not be read.
        KeyboardInterrupt: after a line that says that the change continues.
    """
    view = job_pb2.JOB_VIEW_BASIC
    try:
        with (
            _show(invocation.output) as show,
            invocation.open_client(OUTAGE_S) as client,
            follow(client, job_id, view=view) as changes,
        ):
            look = _Look(invocation, client, job_id, goal)
            found = _wait(look, changes, show, time.monotonic() + limit_s)
    except KeyboardInterrupt:
        invocation.output.note(f"the wait is over, and the change continues: {_where(job_id)}")
        raise
    if found.standing is Standing.PENDING:
        after = describe_ms(round(limit_s * 1000))
        text = f": {found.text}" if found.text else ""
        raise TimedOut(f"not done after {after}{text}; the change continues: {_where(job_id)}")
    if found.standing is Standing.MISSED:
        raise CommandFailed(found.text)
    if not invocation.output.is_json:
        invocation.output.print_line(found.text)


def _where(job_id: str) -> str:
    return recommend("{rallypoint} status {job}", job=job_id)


class _Look:
    """Judges each change of a job."""

    def __init__(self, invocation: Invocation, client: Client, job_id: str, goal: Goal) -> None:
        self._invocation = invocation
        self._began_s = time.monotonic()
        self._client = client
        self._job_id = job_id
        self._goal = goal
        self._job: job_pb2.Job | None = None
        self.is_unsure = False
        """The nodes could not be read: the same change has to be judged again."""

    def judge(self, change: Change) -> Progress:
        """Return how far the goal is.

        Raises:
            RallypointError: the job may not be read.
        """
        if change.error is not None and change.error.status != "NOT_FOUND":
            raise change.error
        if change.job is None:  # the run is over everywhere, or the job was deleted since
            return self._goal.judge_end(self._job_id, self._job)
        self._job, self.is_unsure = change.job, False
        try:
            is_needed = self._goal.needs_nodes
            nodes = list(self._client.list_nodes(self._job_id)) if is_needed else []
        except UnknownJob:
            return self._goal.judge_end(self._job_id, self._job)
        except Unavailable as error:
            self.is_unsure = True
            return Progress(Standing.PENDING, str(error))
        return self._goal.judge(change.job, nodes)

    def judge_left(self) -> Progress | None:
        """Return how the goal has ended if a hosted coordinator has ended with the run meanwhile.

        It ends once every agent knows the outcome, often before a watch does.
        """
        try:
            self._invocation.check_reachable()
        except NotReached:
            from rallypoint.cli.operator.reads.left import find_left

            left = find_left(self._invocation.target.endpoints)
            job = left.jobs.get(self._job_id)
            if job is None or job.phase != job_pb2.JOB_PHASE_CLOSED:
                return None
            if left.ages_s[self._job_id] > time.monotonic() - self._began_s + BEFORE_S:
                return None  # of an earlier coordinator
            return self._goal.judge_end(self._job_id, job)
        return None


def _wait(look: _Look, changes: Changes, show: Callable[[str], None], end_s: float) -> Progress:
    """Return the last progress; still pending: the time is over."""
    progress = Progress(Standing.PENDING, "")
    change: Change | None = None
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            change = changes.get(timeout=min(REFRESH_S, left_s))
        except Empty:
            is_new = look.is_unsure
            if changes.is_away and (found := look.judge_left()) is not None:
                return found
        else:
            is_new = True
        if is_new and change is not None:
            progress = look.judge(change)
        if progress.standing is not Standing.PENDING:
            break
        show(progress.text)
    return progress


@contextmanager
def _show(output: Output) -> Iterator[Callable[[str], None]]:
    """Yield what shows a line about a wait."""
    if output.is_json:
        yield lambda text: None
    elif output.has_cursor:
        with _live_line(output) as show:
            yield show
    else:
        shown = ""

        def show_new(text: str) -> None:
            nonlocal shown
            if text and text != shown:
                shown = text
                output.print_line(f"{time.strftime('%H:%M:%S')}  {text}")

        yield show_new


@contextmanager
def _live_line(output: Output) -> Iterator[Callable[[str], None]]:
    """Yield what changes the line at the cursor; it is gone afterwards."""
    from rich.live import Live
    from rich.text import Text

    began_s = time.monotonic()
    with Live(console=output.console, transient=True, auto_refresh=False) as live:

        def show(text: str) -> None:
            waited = f"{time.monotonic() - began_s:.0f}s"
            shown = f"waiting {waited}  {clean(text or 'for the coordinator')}"
            is_plain = output.console.options.ascii_only
            line = Text(shown, no_wrap=True, overflow="crop" if is_plain else "ellipsis")
            live.update(line, refresh=True)

        yield show
