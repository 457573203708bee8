"""An event as one line, as in a log."""

from __future__ import annotations

from datetime import tzinfo
from typing import TYPE_CHECKING

from rallypoint.cli.operator.output import clean
from rallypoint.cli.operator.views.words import describe_time
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

KIND_COLUMNS = 18
ROUND_COLUMNS = 8
_BAD = ("node_quarantined", "network_suspected", "node_disconnected")
_STYLES = {
    **dict.fromkeys(("round_started", "round_progressed"), "green"),
    **dict.fromkeys(("node_joined", "node_resumed", "hang_over"), "green"),
    **dict.fromkeys(_BAD, "red"),
    **dict.fromkeys(("round_stopped", "drain_started", "culprit_awaited"), "yellow"),
    "hang_suspected": "yellow",
}


def describe_event(event: events_pb2.Event, *, has_job: bool, zone: tzinfo | None = None) -> Text:
    """Return the line of an event.

    Args:
        event: what happened.
        has_job: whether to name its job.
        zone: the time zone of the reader; None: the local one.
    """
    from rich.text import Text

    kind = event.WhichOneof("detail") or "unknown"
    line = Text(describe_time(event.time, zone), style="dim")
    if has_job:
        line.append(f"  {clean(event.job_id)}", style="bold")
    line.append(
        f"  {f'run {event.run}' + (f'/{event.round}' if event.round else ''):{ROUND_COLUMNS}}",
        style="default",
    )
    line.append(f"  {kind.replace('_', ' '):{KIND_COLUMNS}}", style=_style(event, kind))
    line.append(f"  {clean(event.text)}", style="default")
    return line


def hang(line: Text) -> Table:
    """Return the line of an event for a terminal that it does not fit: its time stays alone."""
    from rich.table import Table

    at = line.plain.find("  ")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(line[:at], line[at + 2 :])
    return table


def _style(event: events_pb2.Event, kind: str) -> str:
    if kind == "run_closed":
        return "green" if event.run_closed.outcome == job_pb2.OUTCOME_SUCCEEDED else "red"
    if kind == "node_departed":
        is_lost = event.node_departed.kind == job_pb2.DEPARTURE_KIND_LOST
        return "red" if is_lost else "default"
    return _STYLES.get(kind, "default")
