"""What a job waits for, and what an operator can do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.cli.operator.hints import recommend
from rallypoint.cli.operator.output import clean, make_table
from rallypoint.cli.operator.views.timelines import COLUMNS as TIMELINE_COLUMNS
from rallypoint.cli.operator.views.timelines import describe_origin, make_rows
from rallypoint.cli.operator.views.words import (
    describe_count,
    describe_duration,
    describe_state,
    describe_step,
    style,
    word,
)
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

COLUMNS = ("NODE", "STATE", "FOR", "WHAT TO DO")
TAILS = ("; waiting for ", "; kept out: ", "; at most ")
"""What the table and the second line say instead, in the coordinator's sentence."""


class Advice(Struct, frozen=True):
    """What to know about one kind of wait."""

    then: str = ""
    """What happens when the time is over; empty: only an event ends the wait."""
    todo: str = ""
    """What an operator can do, as `recommend` takes it with `{job}`."""


KINDS = {
    job_pb2.WAIT_KIND_REATTACH: Advice(
        "new rounds can begin",
        "Nothing to do: agents whose workers already run reconnect by themselves.",
    ),
    job_pb2.WAIT_KIND_NODES: Advice(
        "the run fails",
        "Start node-agent with this job on another node, or allow a smaller round: "
        "{rallypoint} resize {job} MIN:MAX",
    ),
    job_pb2.WAIT_KIND_LAST_CALL: Advice(
        "the round begins with those that are ready",
        "Nothing to do: it begins at once when as many nodes are ready as it may have.",
    ),
    job_pb2.WAIT_KIND_RETURNING: Advice(
        "they count as lost",
        "Nothing to do: the next round begins with them, or without them.",
    ),
    job_pb2.WAIT_KIND_BACKOFF: Advice(
        "the next round begins",
        "Rounds fail again and again without progress. See why: {rallypoint} verdict {job}",
    ),
    job_pb2.WAIT_KIND_START: Advice(
        "the round begins again without the nodes that have not started their workers",
        "If it lasts, look at the logs of their agents.",
    ),
    job_pb2.WAIT_KIND_STOP: Advice(
        "the next round begins without the nodes that have not stopped their workers",
        "Workers have the shutdown timeout to end after SIGTERM; then they are killed.",
    ),
    job_pb2.WAIT_KIND_GROWTH: Advice(
        "the round stops, and the next one has the new nodes",
        "Nothing to do: the workers run until then.",
    ),
    job_pb2.WAIT_KIND_FAREWELL: Advice(
        todo="Agents leave when they know it. Give up those that cannot answer: "
        "{rallypoint} cancel {job} --run {run} --force"
    ),
    job_pb2.WAIT_KIND_FENCE: Advice(
        "no worker of the older round runs any more",
        "--fence-after of the job says how long that takes after a node is lost.",
    ),
    job_pb2.WAIT_KIND_DRAIN: Advice(
        "its workers are stopped",
        "Nothing to do: its workers run until they are done, or until then.",
    ),
    job_pb2.WAIT_KIND_NETWORK_SUSPECTED: Advice(
        "nodes that have not reconnected count as lost",
        "Check the network between the nodes and the coordinator: {rallypoint} doctor",
    ),
    job_pb2.WAIT_KIND_BARRIER: Advice(
        "the barrier fails for all who wait there",
        "See all barriers, and every rank that is missing: {rallypoint} barrier list {job}",
    ),
    job_pb2.WAIT_KIND_HANG: Advice(
        todo="See what every worker does: {rallypoint} stacks {job}. To begin again from the last "
        "checkpoint: {rallypoint} restart {job}"
    ),
    job_pb2.WAIT_KIND_SPARE: Advice(
        todo="Nothing to do: a spare replaces a node that leaves or is lost."
    ),
}
"""About each kind of wait."""

NODES = {
    job_pb2.AWAITED_STATE_LOST: "look at its host; start node-agent there again, or elsewhere",
    job_pb2.AWAITED_STATE_LEFT: "start node-agent there again, or elsewhere",
    job_pb2.AWAITED_STATE_DISCONNECTED: "wait; if it stays away, look at its network",
    job_pb2.AWAITED_STATE_NOT_STARTED: "wait; if it lasts, look at the log of its agent",
    job_pb2.AWAITED_STATE_STOPPING: "wait until its workers have ended",
    job_pb2.AWAITED_STATE_BLOCKED: "look at its processes in state D: a file server or a driver",
    job_pb2.AWAITED_STATE_DRAINING: "wait until its workers are done",
    job_pb2.AWAITED_STATE_FENCED: "wait, or end its processes and start its agent again",
    job_pb2.AWAITED_STATE_QUARANTINED: "see why it failed; then {rallypoint} uncordon {job} {node}",
    job_pb2.AWAITED_STATE_SILENT: "wait; if it stays silent, look at its network and its host",
    job_pb2.AWAITED_STATE_NOT_ARRIVED: "see what its workers do there: py-spy dump --pid PID",
    job_pb2.AWAITED_STATE_CORDONED: "let it take part again: {rallypoint} uncordon {job} {node}",
}
"""What to do about a node that a job waits for, as `recommend` takes it."""

HINDERED = {
    job_pb2.AWAITED_STATE_STOPPING: ("stopping", "wait"),
    job_pb2.AWAITED_STATE_BLOCKED: ("blocked", "look at its host"),
}
"""How the words for a state begin, and what to do if a node tells something else that keeps it."""


def render_waiting(job: job_pb2.Job) -> RenderableType:
    """Return what a job waits for, until when, for which nodes, and what to do about it."""
    from rich.console import Group
    from rich.text import Text

    if not job.HasField("waiting"):
        return Group(_describe_none(job), *_show_timeline(job))
    waiting = job.waiting
    advice = KINDS.get(waiting.kind, Advice())
    text = (clean(_shorten(waiting.text)), "yellow")
    is_suspected = waiting.kind == job_pb2.WAIT_KIND_HANG
    verb = " is suspected to hang: " if is_suspected else " waits: "
    title = Text.assemble((clean(job.job_id), "bold"), verb, text)
    parts: list[RenderableType] = [title]
    if waiting.HasField("time_left"):
        then = f"; then {advice.then}" if advice.then else ""
        parts.append(Text(f"It waits at most {describe_duration(waiting.time_left)} more{then}."))
    rows = [_row(job, one) for one in waiting.nodes]
    if rows:
        parts += [Text(), make_table(COLUMNS, rows, flexible="WHAT TO DO")]
    more = _count_awaited(job) - len(rows)
    if rows and more > 0:
        parts.append(Text(f"and {describe_count(more, 'more node')}", style="dim"))
    if advice.todo:
        parts += [Text(), Text(clean(recommend(advice.todo, job=job.job_id, run=str(job.run))))]
    return Group(*parts)


def _count_awaited(job: job_pb2.Job) -> int:
    """Return how many nodes a job waits for, of which a message names only some."""
    match job.waiting.kind:
        case job_pb2.WAIT_KIND_NETWORK_SUSPECTED | job_pb2.WAIT_KIND_RETURNING:
            return job.silent_count
        case job_pb2.WAIT_KIND_NODES:
            return job.gone_count
        case job_pb2.WAIT_KIND_START | job_pb2.WAIT_KIND_STOP:
            return job.waiting.needed_nodes
        case _:
            return 0


def _shorten(text: str) -> str:
    """Return the coordinator's sentence without what is shown below it."""
    return text[: min((at for at in map(text.find, TAILS) if at > 0), default=len(text))]


def _row(job: job_pb2.Job, node: job_pb2.AwaitedNode) -> Sequence[object]:
    state = word(job_pb2.AwaitedState.Name, node.state, "AWAITED_STATE_")
    since = describe_duration(node.in_state_for) if node.HasField("in_state_for") else "-"
    todo = recommend(NODES.get(node.state, ""), job=job.job_id, node=node.name)
    words, otherwise = HINDERED.get(node.state, ("", ""))
    if node.text and not node.text.startswith(words):
        todo = f"{node.text}; {otherwise}"
    return (node.name, style(state), since, todo)


def _show_timeline(job: job_pb2.Job) -> list[RenderableType]:
    """Return where the time went until the round trained, if anything is known of it."""
    from rich.text import Text

    if job.phase == job_pb2.JOB_PHASE_CLOSED or not job.round.HasField("timeline"):
        return []
    timeline = job.round.timeline
    number, origin = job.round.header.number, describe_origin(timeline)
    title = f"How round {number} came into being, since {origin}:"
    table = make_table(TIMELINE_COLUMNS, make_rows(timeline), flexible=TIMELINE_COLUMNS[-1])
    return [Text(), Text(title), table]


def _describe_none(job: job_pb2.Job) -> Text:
    from rich.text import Text

    state = describe_state(job.phase, job.outcome)
    if job.phase == job_pb2.JOB_PHASE_CLOSED:
        what = "its last failure" if job.outcome == job_pb2.OUTCOME_SUCCEEDED else "why"
        see = recommend(f"; see {what}: {{rallypoint}} verdict {{job}}", job=job.job_id)
        why = see if job.HasField("verdict") else ""
        return Text(clean(f"{job.job_id} waits for nothing: it has ended ({state}){why}"))
    text = f"{job.job_id} waits for nothing that the coordinator knows of"
    if not job.HasField("round"):
        return Text(clean(f"{text}: it is {state}"))
    header = job.round.header
    workers = describe_count(header.world_size, "worker")
    nodes = describe_count(header.group_world_size, "node")
    step = describe_step(job.round)
    return Text.assemble(
        clean(f"{text}: round {header.number} runs {workers} on {nodes}"),
        ", " if step else "",
        step,
    )
