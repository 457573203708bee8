"""Events as readers see them: a typed message, and one line for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from rallypoint.base.printable import to_printable_line
from rallypoint.server.core.events.kinds import EventKind
from rallypoint.server.core.events.log import TEXT_MAX, Event
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import RoundReason
from rallypoint.server.core.model.verdict import Consequence, VerdictCause
from rallypoint.server.rpc.mappers import (
    CAUSES,
    CONSEQUENCES,
    DEPARTURES,
    OUTCOMES,
    REASONS,
)
from rallypoint.server.rpc.views.round import marks_message
from rallypoint.server.rpc.views.times import to_timestamp
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration

Facts = dict[str, Any]
"""The facts of an event, by name."""


def event_message(event: Event, now_ms: int) -> events_pb2.Event:
    """Return an event.

    Args:
        event: the event.
        now_ms: journal time.
    """
    facts = dict(event.facts)
    message = events_pb2.Event(
        sequence=event.sequence,
        time=to_timestamp(event.at_ms, now_ms),
        epoch=event.epoch,
        job_id=event.job_id,
        run=event.run,
        round=event.round,
        text=_describe(event, facts),
    )
    detail = getattr(message, ARMS[event.kind])
    detail.SetInParent()  # some details have no fields
    fill = _DETAILS.get(event.kind)
    if fill is not None:
        detail.CopyFrom(fill(facts))
    return message


ARMS = {kind: kind.name.lower() for kind in EventKind}
"""The field of Event that each kind sets."""
KINDS = {kind: events_pb2.EventKind.Value(f"EVENT_KIND_{kind.name}") for kind in EventKind}
"""The kinds in the contract."""


def _run_closed(facts: Facts) -> Message:
    return events_pb2.RunClosed(outcome=OUTCOMES[Outcome(facts["outcome"])], cause=_cause_of(facts))


def _job_updated(facts: Facts) -> Message:
    return events_pb2.JobUpdated(
        min_nodes=facts["min_nodes"],
        max_nodes=facts["max_nodes"],
        max_restarts=facts["max_restarts"],
        reason=facts.get("why", ""),  # an older journal has none
    )


def _round_sealed(facts: Facts) -> Message:
    return events_pb2.RoundSealed(
        reason=REASONS[RoundReason(facts["began"])],
        group_world_size=facts["nodes"],
        world_size=facts["world_size"],
        restart_count=facts["restarts"],
    )


def _round_settled(facts: Facts) -> Message:
    return events_pb2.RoundSettled(
        reason=REASONS[RoundReason(facts["ended"])],
        consequence=CONSEQUENCES[Consequence(facts["consequence"])],
        cause=_cause_of(facts),
        node_name=facts.get("node", ""),
        rank=facts.get("rank"),
        restart_count=facts["restarts"],
    )


def _node_departed(facts: Facts) -> Message:
    finished, kind = job_pb2.DEPARTURE_KIND_FINISHED, DEPARTURES[RoundReason(facts["departure"])]
    return events_pb2.NodeDeparted(
        node_name=facts["node"], kind=finished if facts["has_finished"] else kind
    )


def _other_arguments(facts: Facts) -> Message:
    return events_pb2.OtherArgumentsFound(
        node_name=facts["node"], other_node_name=facts["other_node"]
    )


def _drain_started(facts: Facts) -> Message:
    return events_pb2.DrainStarted(
        node_name=facts["node"],
        drain_timeout=to_duration(facts["time_ms"]),
        reason=facts["why"],
    )


def _network_suspected(facts: Facts) -> Message:
    return events_pb2.NetworkSuspected(
        break_count=facts["breaks"], connection_count=facts["sessions"]
    )


def _cause_of(facts: Facts) -> Any:
    cause = facts.get("cause")
    return None if cause is None else CAUSES[VerdictCause(cause)]


_DETAILS: dict[EventKind, Callable[[Facts], Message]] = {
    EventKind.RUN_CLOSED: _run_closed,
    EventKind.JOB_UPDATED: _job_updated,
    EventKind.RESTART_REQUESTED: lambda facts: events_pb2.RestartRequested(reason=facts["why"]),
    EventKind.ROUND_SEALED: _round_sealed,
    EventKind.ROUND_ADOPTED: lambda facts: events_pb2.RoundAdopted(node_count=facts["nodes"]),
    EventKind.ROUND_STARTED: lambda facts: events_pb2.RoundStarted(
        started_after=to_duration(facts["took_ms"])
    ),
    EventKind.ROUND_STOPPED: lambda facts: events_pb2.RoundStopped(
        reason=REASONS[RoundReason(facts["reason"])]
    ),
    EventKind.ROUND_SETTLED: _round_settled,
    EventKind.ROUND_PROGRESSED: lambda facts: events_pb2.RoundProgressed(
        timeline=marks_message(facts)
    ),
    EventKind.NODE_JOINED: lambda facts: events_pb2.NodeJoined(node_name=facts["node"]),
    EventKind.NODE_DISCONNECTED: lambda facts: events_pb2.NodeDisconnected(node_name=facts["node"]),
    EventKind.NODE_RESUMED: lambda facts: events_pb2.NodeResumed(node_name=facts["node"]),
    EventKind.NODE_DEPARTED: _node_departed,
    EventKind.NODE_RENAMED: lambda facts: events_pb2.NodeRenamed(
        node_name=facts["node"], old_name=facts["before"]
    ),
    EventKind.NODE_DISPLACED: lambda facts: events_pb2.NodeDisplaced(node_name=facts["node"]),
    EventKind.OTHER_ARGUMENTS_FOUND: _other_arguments,
    EventKind.DRAIN_STARTED: _drain_started,
    EventKind.NODE_QUARANTINED: lambda facts: events_pb2.NodeQuarantined(
        node_name=facts["node"], quarantine_time=to_duration(facts["for_ms"])
    ),
    EventKind.QUARANTINE_ENDED: lambda facts: events_pb2.QuarantineEnded(node_name=facts["node"]),
    EventKind.NODE_CORDONED: lambda facts: events_pb2.NodeCordoned(
        node_name=facts["node"], reason=facts["why"]
    ),
    EventKind.NODE_UNCORDONED: lambda facts: events_pb2.NodeUncordoned(
        node_name=facts["node"], reason=facts.get("why", "")
    ),
    EventKind.NETWORK_SUSPECTED: _network_suspected,
}
"""How the details with fields are filled."""

LINES = {
    "job_created": "an operator created the job",
    "run_opened": "run {run} began",
    "run_closed": "run {run} ended: {outcome}",
    "job_deleted": "the job was deleted",
    "job_forgotten": "the job was forgotten",
    "job_updated": "an operator changed the job: {min_nodes} to {max_nodes} nodes, at most "
    "{max_restarts} restarts",
    "restart_requested": "an operator restarted the job",
    "round_sealed": "round {round} was sealed ({began}); nodes: {nodes}, workers: {world_size}",
    "round_adopted": "round {round} was adopted; nodes: {nodes}",
    "round_found_incomplete": "round {round} was found incomplete; nodes: {nodes}",
    "round_started": "round {round} started: every node has its workers",
    "round_stopped": "round {round} is being stopped",
    "round_settled": "round {round} ended: {consequence}; restarts so far: {restarts}",
    "verdict_corrected": "the verdict on round {round} was corrected",
    "round_progressed": "round {round} took its first step {took} after it became necessary",
    "culprit_awaited": "round {round} waits for the failure behind the first ones",
    "node_joined": "node {node} joined",
    "node_disconnected": "the connection of node {node} broke",
    "node_resumed": "node {node} reconnected",
    "node_lost": "node {node} was lost",
    "node_left": "node {node} left",
    "node_renamed": "node {before} is called {node} now",
    "newcomer_displaced": "node {node} made room for a node that holds the round",
    "other_arguments_found": "node {node} runs the program with other arguments than {other_node}",
    "drain_started": "node {node} drains",
    "node_quarantined": "node {node} is quarantined",
    "quarantine_ended": "the quarantine of node {node} is over",
    "node_cordoned": "node {node} was cordoned",
    "node_uncordoned": "node {node} was uncordoned",
    "network_suspected": "{breaks} of {sessions} connections broke at once: the network is "
    "suspected",
}
"""The line of each event, by its name in the log; `why` follows where there is one."""


def _describe(event: Event, facts: Facts) -> str:
    known = {"run": event.run, "round": event.round, **facts}
    if "took_ms" in facts:
        known["took"] = f"{facts['took_ms'] / 1000:.2f} s"
    line = LINES[event.reason].format(**known)
    why = facts.get("why", "")
    return to_printable_line(f"{line}: {why}" if why else line)[:TEXT_MAX]
