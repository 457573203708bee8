"""Who hears from an agent how its job goes: the terminal, its scheduler, a reader of events."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from rallypoint.agent.core.step import EXIT_UNREACHABLE
from rallypoint.agent.events import About, Event, EventLog, Moment
from rallypoint.agent.last_round import LastRound
from rallypoint.agent.output.console import Console
from rallypoint.agent.root_cause import ERROR_FILE_ENV, report_exit, report_finished
from rallypoint.agent.run import Listener, Settings
from rallypoint.cli.render import render_finished
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.log import get_logger

log = get_logger()


@dataclass(slots=True)
class Reports:
    """What one agent says of its job, besides its log."""

    say: Callable[[str], None]
    """Puts lines on the agent's standard error, and never waits."""
    program: str
    """What the workers run, as it was given: the title of the report, as torchrun's."""
    coordinator: str
    """Its address."""
    error_file: str
    """Where the scheduler of this agent looks for the root cause; empty: nowhere."""
    _report: str = ""
    _is_written: bool = False
    _told: tuple[object, ...] = ()
    """What the last line about a wait was for."""

    def finished(self, message: agent_pb2.Finished, here: LastRound) -> None:
        """Take the end of the run; what is printed of it comes last, after the workers' output."""
        self._report = render_finished(message, self.program, here)
        if message.round and here.number == 0:
            log.info("job_ended_without_this_node", why="it had all nodes, or had ended before")
        if self.error_file and message.outcome != job_pb2.OUTCOME_SUCCEEDED:
            self._is_written = True
            report_finished(self.error_file, message, here, _unix_s())

    def waiting(self, message: job_pb2.Waiting) -> None:
        """Log a wait when what it is for changes, not with every second of it."""
        key = (message.kind, message.ready_nodes, *(node.name for node in message.nodes))
        if self._told != key:
            self._told = key
            log.info("waiting", why=message.text)

    def disconnected(self, why: str, timeout_s: float) -> None:
        """Log that the coordinator is away."""
        log.warning(
            "coordinator_away",
            why=why,
            then="running workers go on; if none run, the agent gives up after "
            f"{timeout_s:g} s (--coordinator-timeout)",
        )

    def ended(self, exit_code: int | None, text: str, *, is_told: bool) -> None:
        """Print the report, and why the agent ends unless it succeeded and `is_told` is false.

        Args:
            exit_code: None: the agent was interrupted before it had one.
            text: why it ends, one line.
            is_told: it is said even of a success.
        """
        lines = [self._report] if self._report else []
        if exit_code == EXIT_UNREACHABLE:
            port = self.coordinator.rpartition(":")[2]
            text += f" ({self.coordinator}); start one there: coordinator --port {port}"
        if exit_code or is_told:
            lines.append(f"node-agent: {text}")
        if lines:
            self.say("\n".join(lines))
        if self.error_file and exit_code and not self._is_written:
            report_exit(self.error_file, text, exit_code, _unix_s())


def new_reports(args: argparse.Namespace, settings: Settings, console: Console) -> Reports:
    """Return the reports of an agent with this command line and standard error."""

    def say(text: str) -> None:
        console.say(f"{text}\n".encode(errors="backslashreplace"))

    error_file = settings.environment.get(ERROR_FILE_ENV, "")
    return Reports(say, args.script, settings.coordinator, error_file)


def new_listener(args: argparse.Namespace, settings: Settings, reports: Reports) -> Listener:
    """Return what an agent is given to say things to."""
    events = _console_events(settings, reports.say) if args.event_log_handler == "console" else None
    return Listener(reports.finished, reports.waiting, reports.disconnected, events)


def _console_events(settings: Settings, say: Callable[[str], None]) -> EventLog:
    began_ns = time.monotonic_ns()

    def moment() -> Moment:
        since_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        return Moment(int(_unix_s() * 1000), since_ms)

    def record(event: Event) -> None:
        say(json.dumps(event))

    about = About(settings.job_id, settings.role, settings.host_name, settings.launch.script)
    return EventLog(about, record, moment)


def _unix_s() -> float:
    return time.time()  # noqa: TID251  # a time stamp for people to read
