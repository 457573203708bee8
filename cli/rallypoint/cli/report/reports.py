"""The reports of an agent about its job: to the terminal, to its scheduler, and as events."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.core.leaving.away import Absence
from rallypoint.agent.session.translate import OUTCOME_TEXTS
from rallypoint.agent.settings import AgentCallbacks, Settings
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.root_cause import ERROR_FILE_ENV, report_exit, report_finished
from rallypoint.base.console import Console
from rallypoint.base.exit_codes import EXIT_UNREACHABLE
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.base.printable import to_printable_line
from rallypoint.base.terminal_text import encode
from rallypoint.cli.flags.flag import Values
from rallypoint.cli.report.failure import to_fields
from rallypoint.cli.report.render import LINE_CHARS_MAX, render_finished
from rallypoint.cli.terminal import find_columns, join_words, wants_colours
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.coordinators import describe_start

if TYPE_CHECKING:
    from rallypoint.cli.report.event_recorder import EventRecorder

log = get_logger()

HANGING_INDENT = 4
"""Columns before the other lines of a line that a terminal wraps."""
FILE_LIMIT_S = 2.0
"""How long the end of the agent waits for the scheduler's error file."""


class Reports(Struct):
    """The reports of one agent about its job, besides its log."""

    print_lines: Callable[[str], None]
    """Writes lines to the agent's standard error; never blocks."""
    prog: str
    """The command as the user typed it."""
    script: str
    """The workers' program as given, which is the title of the report, as in torchrun's."""
    coordinator: str
    """host:port."""
    error_file: str
    """File in which the scheduler expects the root cause; empty: none."""
    files: FileThread
    """Writes that file."""
    recorder: EventRecorder | None = None
    """Records events; None without a request for them."""
    start: Callable[[], str] | None = None
    """Returns how a coordinator comes to be there, one line; None: a person starts it."""
    is_json: bool = False
    """Everything is an event of the log: there is no report in lines."""
    _report: str = ""
    _succeeded: agent_pb2.Finished | None = None
    """The end of the run, if it succeeded on this node too."""
    _failed: agent_pb2.Finished | None = None
    """The end of the run, if it did not succeed."""
    _answer: str = ""
    """Why a coordinator could not serve this agent, if one has answered last."""
    has_outcome: bool = False
    """The coordinator told how the run ended."""
    _is_written: bool = False
    """Whether the error file was written."""

    def finished(self, message: agent_pb2.Finished, here: LastRound) -> None:
        """Keep the report on the end of the run; `ended` prints it after the workers' output."""
        self.has_outcome = True
        self._report = render_finished(
            message,
            self.script,
            here,
            paint=self._paint,
            columns=self._find_columns() or LINE_CHARS_MAX,
        )
        if message.round and here.number == 0:
            log.info(
                "job_ended_without_this_node", why="the job had all its nodes, or had already ended"
            )
        elif message.outcome == job_pb2.OUTCOME_SUCCEEDED:
            self._succeeded = message
        if message.outcome != job_pb2.OUTCOME_SUCCEEDED:
            self._failed = message
        if self.error_file and message.outcome != job_pb2.OUTCOME_SUCCEEDED:
            self._is_written = True
            write = partial(report_finished, self.error_file, message, here, _unix_s())
            self._write_later(write)

    def _write_later(self, write: Callable[[], None]) -> None:
        """Write the scheduler's file in a thread; without one the exit code still counts."""
        try:
            self.files.submit(write)
        except (OSError, RuntimeError) as error:  # no thread can be started
            log.warning("error_file_not_written", path=self.error_file, why=str(error))

    @property
    def _start(self) -> str:
        return describe_start(self.coordinator) if self.start is None else self.start()

    def disconnected(self, absence: Absence) -> None:
        """Log that no coordinator answers."""
        self._answer = absence.why if absence.is_answered else ""
        is_there = absence.was_reached or absence.is_answered
        start = {} if is_there else {"hint": self._start}
        then = describe_absence(absence)
        log.warning("coordinator_not_reached", why=absence.why, then=then, **start)

    def ended(
        self, exit_code: int | None, text: str, *, always_print: bool, is_refused: bool = False
    ) -> None:
        """Print the report, and the reason why the agent ends unless it succeeded.

        Args:
            exit_code: None: the agent was interrupted before it had one.
            text: why it ends, one line.
            always_print: print the reason even after success.
            is_refused: the text says why no attempt to connect can succeed.
        """
        if self.recorder is not None:
            self.recorder.flush()
        if exit_code == 0 and self._succeeded is not None:
            ended = self._succeeded
            log.info("job_succeeded", round=ended.round, restarts=ended.restart_count)
        if self._failed is not None:
            self._log_failed(self._failed)
            text = _with_cause(text, self._failed)
        lines = [self._report] if self._report else []
        if exit_code == EXIT_UNREACHABLE and not is_refused:
            last = self._answer and f"the last answer: {self._answer}"
            text += f" ({self.coordinator}); {last or self._start}"
        if exit_code or always_print or (exit_code == 0 and not self.has_outcome):
            lines.append(self._last_line(text, is_failure=bool(exit_code)))
        if lines and self.is_json:
            write = log.info if exit_code == 0 else log.error
            write("agent_ended", why=text, exit_code=exit_code, command=self.prog)
        elif lines:
            self.print_lines("\n".join(lines))
        if self.error_file and exit_code and not self._is_written:
            self._write_later(partial(report_exit, self.error_file, text, exit_code, _unix_s()))
        if not self.files.flush(FILE_LIMIT_S):
            why = f"its file system does not answer within {FILE_LIMIT_S:g} s"
            log.warning("error_file_not_written", path=self.error_file, why=why)

    def _last_line(self, text: str, *, is_failure: bool) -> str:
        words = f"{self.prog}: {to_printable_line(text)}".split(" ")
        columns = self._find_columns()
        line = join_words(((word, len(word)) for word in words), columns, HANGING_INDENT)
        return self._paint(line) if is_failure else line

    def _find_columns(self) -> int:
        return 0 if self.is_json else find_columns(sys.stderr)

    def _paint(self, text: str) -> str:
        """Return a text in red on a terminal that has colours."""
        is_plain = self.is_json or not wants_colours(sys.stderr, os.environ)
        return text if is_plain else f"\x1b[31m{text}\x1b[0m"

    def _log_failed(self, ended: agent_pb2.Finished) -> None:
        """Log the end of a run that did not succeed; only JSON has what the report has."""
        fields = to_fields(ended) | {"report": self._report}
        if not self.is_json:
            fields = {name: fields[name] for name in ("round", "restarts", "why") if name in fields}
        match ended.outcome:
            case job_pb2.OUTCOME_CANCELLED:
                log.warning("job_cancelled", **fields)
            case job_pb2.OUTCOME_ABANDONED:
                log.error("job_abandoned", **fields)
            case _:
                log.error("job_failed", **fields)


def _with_cause(text: str, ended: agent_pb2.Finished) -> str:
    """Return why the agent ends, with what failed if it ends because its run has."""
    cause = ended.verdict.text.partition("\n")[0]
    if not cause or text != OUTCOME_TEXTS.get(ended.outcome):
        return text
    return cause if cause.startswith(text) else f"{text}: {cause}"


def describe_absence(absence: Absence) -> str:
    """Return what the agent does while no coordinator answers, and for how long."""
    if absence.left_ms is None:
        timeout_s = absence.timeout_ms / 1000
        what = "workers keep running" if absence.has_begun else "retrying"
        return f"{what}; an agent without workers gives up after {timeout_s:g} s{_FLAG}"
    left_s = math.ceil(absence.left_ms / 1000)
    if not absence.has_begun:
        return f"no workers run yet; retrying for {left_s} s{_FLAG}"
    return f"no workers run any more; retrying for {left_s} s"


_FLAG = " (--coordinator-timeout)"


def new_reports(args: Values, settings: Settings, console: Console) -> Reports:
    """Return the reports of an agent with these flags, on its standard error."""

    def print_lines(text: str) -> None:
        console.say(encode(f"{text}\n"))

    error_file = settings.environment.get(ERROR_FILE_ENV, "")
    files = FileThread("report")
    recorder = _open_recorder(args.event_log_handler, console)
    target, keeper = settings.coordinator, settings.keeper
    start = None if keeper is None else keeper.describe_wait
    return Reports(
        print_lines=print_lines,
        prog=args.prog,
        script=args.script,
        coordinator=target,
        error_file=error_file,
        files=files,
        recorder=recorder,
        start=start,
        is_json=args.log_format == "json",
    )


def _open_recorder(handler: str, console: Console) -> EventRecorder | None:
    if handler == "null":
        return None
    from rallypoint.cli.report.event_recorder import EventRecorder  # few agents record events

    return EventRecorder.open(handler, console)


def new_callbacks(settings: Settings, reports: Reports) -> AgentCallbacks:
    """Return the callbacks that pass an agent's events to its reports."""
    recorder = reports.recorder
    events = None if recorder is None else recorder.new_log(settings)
    return AgentCallbacks(reports.finished, reports.disconnected, events)


def _unix_s() -> float:
    return time.time()  # noqa: TID251  # a time stamp that people read
