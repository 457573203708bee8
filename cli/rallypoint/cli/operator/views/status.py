"""The status of a job: its facts, its nodes, its rounds, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.base.values import describe_ms
from rallypoint.cli.operator.output import clean, make_table
from rallypoint.cli.operator.views.nodes import COLUMNS, NOTE, choose_rows
from rallypoint.cli.operator.views.timelines import describe_timeline
from rallypoint.cli.operator.views.times import Times, compute_times
from rallypoint.cli.operator.views.words import (
    describe_count,
    describe_duration,
    describe_reason,
    describe_size,
    describe_state,
    describe_step,
    style,
)
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.wire.durations import to_ms

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

ROUND_COLUMNS = ("ROUND", "AFTER", "NODES", "WORKERS", "RECOVERED", "LASTED", "ENDED BY")
LABEL_COLUMNS = 10
"""Width of the names of facts."""
COMMANDS_MAX = 3
SILENT = (job_pb2.AWAITED_STATE_DISCONNECTED, job_pb2.AWAITED_STATE_SILENT)


class Extent(Struct, frozen=True):
    """How much is shown."""

    nodes: int | None = 20
    """Rows of nodes; None: all."""
    rounds: int = 5
    """Rounds that have ended."""


def render_status(
    job: job_pb2.Job, nodes: Sequence[node_pb2.Node], extent: Extent, note: str = ""
) -> Group:
    """Return the status of a job.

    Args:
        job: what the coordinator shows of it.
        nodes: of the job, all or those of its message.
        extent: how much to show.
        note: about the view itself, below the first line; empty: none.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_title(job)]
    parts += [Text(note, style="reverse yellow")] if note else []
    parts.append(_facts(job, nodes))
    chosen = choose_rows(job, nodes, extent.nodes)
    if chosen.rows:
        parts += [Text(), make_table(COLUMNS, chosen.rows, flexible=NOTE)]
    parts += [Text(chosen.rest, style="dim")] if chosen.rest else []
    rounds = _round_rows(job, extent.rounds)
    if rounds:
        parts += [Text(), make_table(ROUND_COLUMNS, rounds, flexible="ENDED BY")]
    return Group(*parts)


def describe_change(job: job_pb2.Job) -> str:
    """Return the state of a job as one line: what a log of its changes shows."""
    parts = [job.job_id, describe_state(job.phase, job.outcome)]
    if job.HasField("round"):
        header = job.round.header
        parts.append(f"round {header.number}")
        parts.append(describe_count(header.world_size, "worker"))
    parts.append(describe_count(job.node_count, "node"))
    if job.restart_count:
        parts.append(describe_count(job.restart_count, "restart"))
    why = ""
    if job.HasField("waiting"):
        why = job.waiting.text.partition("; at most ")[0]  # what else changes is only time
    elif job.outcome == job_pb2.OUTCOME_FAILED:
        why = job.verdict.text
    return clean(", ".join(parts) + (f": {why}" if why else ""))


def _title(job: job_pb2.Job) -> Text:
    from rich.text import Text

    state = style(describe_state(job.phase, job.outcome))
    age = f"  run {job.run}, opened {describe_duration(job.age)} ago"
    return Text.assemble((clean(job.job_id), "bold"), "  ", state, age)


def _facts(job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(min_width=LABEL_COLUMNS, no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    facts: list[tuple[str, str | Text]] = [("nodes", _describe_nodes(job, nodes))]
    if job.HasField("round"):
        facts.append(("round", _describe_round(job)))
        if job.round.HasField("timeline"):
            facts.append(("timeline", describe_timeline(job.round.timeline)))
    facts.append(("restarts", f"{job.restart_count} of {job.spec.max_restarts} used"))
    if job.HasField("waiting"):
        is_suspected = job.waiting.kind == job_pb2.WAIT_KIND_HANG
        name = "suspicion" if is_suspected else "waits for"
        facts.append((name, Text(clean(job.waiting.text), style="yellow")))
    if job.HasField("verdict") and job.outcome == job_pb2.OUTCOME_SUCCEEDED:
        facts.append(("last failure", job.verdict.text))
    elif job.HasField("verdict"):
        facts.append(("verdict", Text(clean(job.verdict.text), style="red")))
    facts.append(("time", _describe_times(compute_times(job))))
    facts += [("command", one) for one in _describe_commands(job)]
    for name, value in facts:
        table.add_row(name, value if isinstance(value, Text) else Text(clean(value)))
    return table


def _describe_nodes(job: job_pb2.Job, nodes: Sequence[node_pb2.Node]) -> str:
    size = describe_size(job.spec.min_nodes, job.spec.max_nodes)
    text = f"{job.node_count:,} connected, {size} wanted"
    if job.silent_count:
        connected = job.node_count - job.silent_count
        text = f"{connected:,} of {job.node_count:,} connected, {size} wanted"
        text += f", {job.silent_count:,} silent{_describe_silence(job)}"
    if len(nodes) < job.node_count:  # of a large job only some are read
        return text
    spares = sum(one.spare for one in nodes)
    draining = sum(one.HasField("drain_time_left") for one in nodes)
    text += f", {describe_count(spares, 'spare')}" if spares else ""
    return text + (f", {draining:,} draining" if draining else "")


def _describe_silence(job: job_pb2.Job) -> str:
    """Return for how long nodes have been silent, as far as the wait for them says it."""
    silent = (to_ms(one.in_state_for) for one in job.waiting.nodes if one.state in SILENT)
    longest = max(silent, default=0)
    return f" for {describe_ms(longest)}" if longest else ""


def _describe_round(job: job_pb2.Job) -> Text:
    from rich.text import Text

    one, header = job.round, job.round.header
    text = (
        f"{header.number} ({describe_reason(header.reason)}): "
        f"{describe_count(header.world_size, 'worker')} on "
        f"{describe_count(header.group_world_size, 'node')}, {describe_duration(one.age)} old"
    )
    if one.HasField("started_after"):
        text += f", started in {describe_duration(one.started_after)}"
    step = describe_step(one)
    return Text.assemble(text, ", ", step) if step else Text(text)


def _describe_times(times: Times) -> str:
    if not times.total:
        return "-"
    parts = (
        (times.running, "running"),
        (times.starting, "starting workers"),
        (times.between, "between rounds"),
    )
    text = ", ".join(
        f"{_describe_share(ms, times.total)} {name} ({describe_ms(ms)})" for ms, name in parts if ms
    )
    return text if times.is_whole else f"{text}, in the last {times.rounds} rounds"


def _describe_share(part: int, total: int) -> str:
    """Return a part as a percentage, which is 0 or 100 only if that is all of the truth."""
    percent = 100 * part / total
    if part and percent < 1:
        return "<1%"
    return ">99%" if part < total and percent > 99 else f"{percent:.0f}%"


def _describe_commands(job: job_pb2.Job) -> list[str]:
    lines = list[str]()
    for one in job.commands[:COMMANDS_MAX]:
        by = f" (by {one.user})" if one.user else ""
        where = "" if job.command_count == 1 else f", on {describe_count(one.node_count, 'node')}"
        lines.append(f"{one.command_line}{by}{where}")
    more = job.command_count - len(lines)
    return [*lines, f"and {more:,} others"] if more > 0 else lines


def _round_rows(job: job_pb2.Job, most: int) -> list[Sequence[object]]:
    """Return a row for each round that has ended, the latest first, of the latest run."""
    ended = [one for one in job.history if one.run == job.run]
    return [
        (
            one.number,
            describe_reason(one.begin_reason),
            one.group_world_size,
            one.world_size,
            describe_duration(one.recovered_after) if one.HasField("recovered_after") else "-",
            describe_duration(one.lasted_for),
            describe_reason(one.end_reason) + (f": {one.end_note}" if one.end_note else ""),
        )
        for one in reversed(ended[max(0, len(ended) - most) :])
    ]
