"""Why the coordinator refuses an input, and the facts that the answer carries."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from rallypoint.server.core.model.ids import JobId


class RefusalKind(Enum):
    """Why a Hello, a report or a request was refused; `contract/refusals.py` has the statuses."""

    SPEC_MISMATCH = "spec mismatch"
    NODE_NAME_IN_USE = "node name in use"
    NODE_RANK_IN_USE = "node rank in use"
    ADDRESS_MISMATCH = "address mismatch"
    PROGRAM_MISMATCH = "program mismatch"
    PREVIOUS_RUN_ENDING = "previous run ending"
    OLD_RUN = "old run"
    STALE_CONNECTION = "stale connection"
    STALE_EPOCH = "stale epoch"
    NEWER_EPOCH = "newer epoch"
    FOREIGN_ROUND = "foreign round"
    UNKNOWN_SESSION = "unknown session"
    NOT_PROVEN = "not proven"
    SEQUENCE_GAP = "sequence gap"
    LIMIT_REACHED = "limit reached"
    UNKNOWN_JOB = "unknown job"
    UNKNOWN_NODE = "unknown node"
    TOKEN_MISSING = "token missing"
    OTHER_JOB = "other job"
    TOKEN_REFUSED = "token refused"
    NOT_READY = "not ready"
    RUN_OVER = "run over"
    OLD_ROUND = "old round"
    BARRIER_MISMATCH = "barrier mismatch"
    BARRIER_FORGOTTEN = "barrier forgotten"
    GENERATION_OVER = "generation over"
    PARTICIPANT_ARRIVED = "participant arrived"
    NOT_EXPECTED = "not expected"
    JOB_EXISTS = "job exists"
    JOB_ENDED = "job ended"
    JOB_OPEN = "job open"
    LATER_RUN = "later run"
    SPEC_IMPOSSIBLE = "spec impossible"
    NODES_MISSING = "nodes missing"
    KEY_NOT_A_NUMBER = "key not a number"
    SUM_TOO_LARGE = "sum too large"
    REQUEST_ID_REUSED = "request id reused"
    KEYS_FORGOTTEN = "keys forgotten"
    KEYS_COMPACTED = "keys compacted"
    SPEC_CHANGED = "spec changed"
    REVISION_COMPACTED = "revision compacted"
    EVENTS_COMPACTED = "events compacted"
    INTERNAL = "internal error"


class Limit(Enum):
    """What there may be only so much of; the value is the limit in words."""

    JOBS = "jobs"
    NODES_PER_JOB = "nodes per job"
    NODE_HEALTH = "nodes kept out of rounds"
    ABSENT_CORDONS = "cordons of nodes that are not connected"
    OPEN_BARRIERS = "open barriers of one job"
    BARRIER_NAMES = "bytes of names a second with which one job opens barriers"
    PAYLOAD_BYTES = "bytes of payloads at a barrier"
    BARRIER_CALLS = "calls that wait at one barrier"
    KEYS = "keys of one job"
    KEY_BYTES = "bytes of keys and values of one job"
    KEY_RATE = "bytes a second with which one job changes keys"
    ALL_WEIGHT = "bytes of the keys and barriers of all jobs"
    BARRIER_BYTES = "bytes of the barriers of one job"
    VALUE_BYTES = "bytes of one value"
    VALUES = "bytes of values in one answer"
    KEY_CALLS = "calls of one job that wait for keys"
    KEY_WATCHES_PER_JOB = "watches of keys of one job"
    KEY_WATCHES_PER_HOST = "watches of keys on one host"
    EVENT_WATCHES_PER_JOB = "watches of events of one job"
    EVENT_WATCHES_PER_HOST = "watches of events on one host"
    ANSWER_BYTES = "bytes of keys and values in one answer"
    WATCHERS_PER_JOB = "watchers of one job"
    WATCHERS_PER_HOST = "watchers on one host"
    JOBS_WATCHERS = "watchers of all jobs"
    HEALTH_WATCHES_PER_HOST = "watches of the health on one host"
    REFLECTIONS_PER_HOST = "streams of reflection from one host"
    REQUESTS_PER_HOST = "calls from one host whose request has not arrived"
    UNREAD_PER_HOST = "bytes of answers that one host has not read"
    STREAMS_PER_HOST = "streams from one host"
    STREAMS_PER_RELAY = "agents of one relay"
    JOBS_PER_HOST = "jobs from one host"
    JOBS_PER_TOKEN = "jobs with one token"
    SESSIONS_PER_HOST = "new sessions a minute from one host"
    NEW_RUNS_PER_HOST = "new jobs a minute from one host"
    FAILED_ATTEMPTS_PER_HOST = "failed attempts a minute to authenticate from one host"


class Refusal(Struct, frozen=True):
    """A refused input: the kind and the facts that its detail message carries, never prose."""

    kind: RefusalKind
    facts: tuple[tuple[str, str | int], ...] = ()
    """Named values, in the order of the detail message's fields."""
    differences: tuple[tuple[str, str, str], ...] = ()
    """For SPEC_MISMATCH: (field of the specification in the contract, expected, actual)."""


def limit_reached(limit: Limit, value: int) -> Refusal:
    """Return the refusal of what exceeds a limit; `value` is the limit's."""
    return Refusal(RefusalKind.LIMIT_REACHED, (("limit", limit.value), ("value", value)))


def unknown_job(job_id: JobId) -> Refusal:
    """Return the refusal of what is about a job that does not exist."""
    return Refusal(RefusalKind.UNKNOWN_JOB, (("job_id", job_id),))
