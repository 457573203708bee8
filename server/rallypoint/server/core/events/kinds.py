"""The kinds of events, and the names that the log has for them."""

from __future__ import annotations

from enum import Enum


class EventKind(Enum):
    """Kind of an event, as readers see it."""

    JOB_CREATED = "job created"
    RUN_OPENED = "run opened"
    RUN_CLOSED = "run closed"
    JOB_DELETED = "job deleted"
    JOB_UPDATED = "job updated"
    RESTART_REQUESTED = "restart requested"
    ROUND_SEALED = "round sealed"
    ROUND_ADOPTED = "round adopted"
    ROUND_STARTED = "round started"
    ROUND_STOPPED = "round stopped"
    ROUND_SETTLED = "round settled"
    VERDICT_CORRECTED = "verdict corrected"
    CULPRIT_AWAITED = "culprit awaited"
    ROUND_PROGRESSED = "round progressed"
    NODE_JOINED = "node joined"
    NODE_DISCONNECTED = "node disconnected"
    NODE_RESUMED = "node resumed"
    NODE_DEPARTED = "node departed"
    NODE_RENAMED = "node renamed"
    NODE_DISPLACED = "node displaced"
    OTHER_ARGUMENTS_FOUND = "other arguments found"
    DRAIN_STARTED = "drain started"
    NODE_QUARANTINED = "node quarantined"
    QUARANTINE_ENDED = "quarantine ended"
    NODE_CORDONED = "node cordoned"
    NODE_UNCORDONED = "node uncordoned"
    NETWORK_SUSPECTED = "network suspected"


OF_NODES = frozenset(
    {
        EventKind.NODE_JOINED,
        EventKind.NODE_DISCONNECTED,
        EventKind.NODE_RESUMED,
        EventKind.NODE_DEPARTED,
        EventKind.NODE_RENAMED,
        EventKind.NODE_DISPLACED,
        EventKind.OTHER_ARGUMENTS_FOUND,
    }
)
"""Kinds of which a large job has one for every node at once."""
KINDS: dict[str, EventKind] = {
    "job_created": EventKind.JOB_CREATED,
    "run_opened": EventKind.RUN_OPENED,
    "run_closed": EventKind.RUN_CLOSED,
    "job_deleted": EventKind.JOB_DELETED,
    "job_forgotten": EventKind.JOB_DELETED,
    "job_updated": EventKind.JOB_UPDATED,
    "restart_requested": EventKind.RESTART_REQUESTED,
    "round_sealed": EventKind.ROUND_SEALED,
    "round_adopted": EventKind.ROUND_ADOPTED,
    "round_found_incomplete": EventKind.ROUND_ADOPTED,  # it is stopped at once
    "round_started": EventKind.ROUND_STARTED,
    "round_stopped": EventKind.ROUND_STOPPED,
    "round_settled": EventKind.ROUND_SETTLED,
    "verdict_corrected": EventKind.VERDICT_CORRECTED,
    "culprit_awaited": EventKind.CULPRIT_AWAITED,
    "round_progressed": EventKind.ROUND_PROGRESSED,
    "node_joined": EventKind.NODE_JOINED,
    "node_disconnected": EventKind.NODE_DISCONNECTED,
    "node_resumed": EventKind.NODE_RESUMED,
    "node_lost": EventKind.NODE_DEPARTED,
    "node_left": EventKind.NODE_DEPARTED,
    "node_renamed": EventKind.NODE_RENAMED,
    "newcomer_displaced": EventKind.NODE_DISPLACED,
    "other_arguments_found": EventKind.OTHER_ARGUMENTS_FOUND,
    "drain_started": EventKind.DRAIN_STARTED,
    "node_quarantined": EventKind.NODE_QUARANTINED,
    "quarantine_ended": EventKind.QUARANTINE_ENDED,
    "node_cordoned": EventKind.NODE_CORDONED,
    "node_uncordoned": EventKind.NODE_UNCORDONED,
    "network_suspected": EventKind.NETWORK_SUSPECTED,
}
"""The kind of each event that the core emits, by its name in the log."""
