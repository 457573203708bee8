"""Values of the contract in words, and their colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.base.exit_codes import find_signal_name
from rallypoint.base.ranges import join_ranges
from rallypoint.base.values import describe_ms
from rallypoint.v1 import job_pb2, node_pb2, round_pb2, verdict_pb2
from rallypoint.wire.durations import to_ms

if TYPE_CHECKING:
    from rich.text import Text

OPEN_PHASES = (
    job_pb2.JOB_PHASE_FORMING,
    job_pb2.JOB_PHASE_RUNNING,
    job_pb2.JOB_PHASE_STOPPING,
)
STYLES = {
    **dict.fromkeys(("running", "succeeded"), "green"),
    **dict.fromkeys(("forming", "stopping", "starting", "not ready", "draining"), "yellow"),
    **dict.fromkeys(("failed", "abandoned", "blocked", "disconnected", "lost"), "red"),
    **dict.fromkeys(("cancelled", "cordoned", "quarantined"), "magenta"),
    **dict.fromkeys(("ready", "spare"), "cyan"),
}
"""Colour of each state of a job or node."""
LATE_GAPS = 10
"""Usual gaps between two steps after which the next one is late."""


def style(state: str, text: str = "") -> Text:
    """Return a state, or a text about it, in its colour."""
    from rich.text import Text

    return Text(text or state, style=STYLES.get(state, ""))


def describe_state(phase: job_pb2.JobPhase.ValueType, outcome: job_pb2.Outcome.ValueType) -> str:
    """Return the state of a run in one word: its phase, or its outcome once it has one."""
    if outcome not in (job_pb2.OUTCOME_UNSPECIFIED, job_pb2.OUTCOME_OPEN):
        return word(job_pb2.Outcome.Name, outcome, "OUTCOME_")
    return word(job_pb2.JobPhase.Name, phase, "JOB_PHASE_")


def describe_node(node: node_pb2.Node) -> str:
    """Return the state of a node in one or two words."""
    if not node.attached:
        return "disconnected"
    state = node.state
    if state == node_pb2.NODE_STATE_READY and node.spare:
        return "spare"
    return _NODE_STATES.get(state) or f"unknown ({state})"


def describe_job(job: job_pb2.JobSummary) -> Sequence[object]:
    """Return the row of a job: see `COLUMNS` of the command."""
    return (
        job.job_id,
        job.run,
        style(describe_state(job.phase, job.outcome)),
        f"{job.node_count - job.silent_count}/{describe_size(job.min_nodes, job.max_nodes)}",
        job.world_size,
        job.round,
        f"{job.restart_count}/{job.max_restarts}",
        _describe_age(job),
        job.waiting or _describe_verdict(job),
    )


def find_urgency(job: job_pb2.JobSummary) -> tuple[int, int, str]:
    """Return the place of a job in a list: those that wait, that run, that have ended."""
    group = 2 if job.HasField("closed_at") else 0 if job.waiting else 1
    return group, _find_age_ms(job), job.job_id


def _describe_age(job: job_pb2.JobSummary) -> str:
    """Return how long a run has lasted, or how long ago it has ended."""
    age = describe_ms(_find_age_ms(job))
    return f"{age} ago" if job.HasField("closed_at") else age


def _find_age_ms(job: job_pb2.JobSummary) -> int:
    age_ms = to_ms(job.age)
    if not job.HasField("closed_at"):
        return age_ms
    lasted_ms = job.closed_at.ToMilliseconds() - job.opened_at.ToMilliseconds()
    return max(0, age_ms - lasted_ms)


def _describe_verdict(job: job_pb2.JobSummary) -> str:
    """Return what failed last, marked as such if the run has succeeded after it."""
    is_over = bool(job.verdict) and job.outcome == job_pb2.OUTCOME_SUCCEEDED
    return f"last failure: {job.verdict}" if is_over else job.verdict


def describe_step(round: round_pb2.Round) -> Text:
    """Return the last step of a round and its age: `step 4,100, 12m ago`; empty: there is none.

    It is yellow after LATE_GAPS times the usual time between two reports of steps.
    """
    from rich.text import Text

    if not round.step:
        return Text()
    text = Text(f"step {round.step:,}")
    if not round.HasField("since_step"):
        return text
    text.append(f", {describe_duration(round.since_step)} ago")
    gap_ms = to_ms(round.step_interval)
    if gap_ms and to_ms(round.since_step) > LATE_GAPS * gap_ms:
        text.append(f", usually one every {describe_ms(gap_ms)}")
        text.stylize("yellow")
    return text


def describe_reason(reason: round_pb2.RoundReason.ValueType) -> str:
    """Return why a round began or ended."""
    return word(round_pb2.RoundReason.Name, reason, "ROUND_REASON_")


def describe_cause(cause: verdict_pb2.VerdictCause.ValueType) -> str:
    """Return what kind of event a verdict is about."""
    return word(verdict_pb2.VerdictCause.Name, cause, "VERDICT_CAUSE_")


def describe_exit(exit: node_pb2.WorkerExit) -> str:
    """Return how a worker ended: `exit code 1`, `signal 9 (SIGKILL)`."""
    if exit.HasField("exit_code"):
        return f"exit code {exit.exit_code}"
    if not exit.HasField("signal"):
        return "it recorded its error and had not ended yet"
    name = find_signal_name(exit.signal)
    text = f"signal {exit.signal} ({name})" if name else f"signal {exit.signal}"
    return f"{text}, killed by the kernel's OOM killer" if exit.oom_killed else text


def describe_ranks(first: int, size: int) -> str:
    """Return consecutive ranks: `0-7`, or `3`."""
    return join_ranges(((first, first + max(0, size - 1)),))


def describe_size(min_nodes: int, max_nodes: int) -> str:
    """Return how many nodes a job takes: `4`, or `2:4`, as `--nnodes` takes it."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"


def describe_count(number: int, noun: str) -> str:
    """Return `1 node`, or `1,024 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe_time(time: Timestamp, zone: tzinfo | None = None) -> str:
    """Return a point in time, in the reader's zone: `2026-11-23 09:25:32`; None: the local one."""
    moment = datetime.fromtimestamp(time.seconds, zone)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def describe_duration(duration: Duration) -> str:
    """Return a time in at most two units: `850ms`, `12s`, `3m20s`, `5h7m`, `2d3h`."""
    return describe_ms(to_ms(duration))


def word(name_of: Callable[[Any], str], number: int, prefix: str) -> str:
    """Return a value of an enum in lower case; the number of one that is newer than this client."""
    try:
        return name_of(number).removeprefix(prefix).lower().replace("_", " ")
    except ValueError:
        return f"unknown ({number})"


_NODE_STATES = {
    number: word(node_pb2.NodeState.Name, number, "NODE_STATE_")
    for number in node_pb2.NodeState.values()
} | {
    node_pb2.NODE_STATE_UNREADY: "not ready",
    node_pb2.NODE_STATE_ASSIGNED: "starting",
    node_pb2.NODE_STATE_STARTED: "running",
}
"""In the words of a job; a table, for jobs of thousands of nodes."""
