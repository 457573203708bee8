"""Why the coordinator refuses an input, and the facts that the answer carries."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class RefusalKind(Enum):
    """Why a Hello, a report or a request was refused; `rpc/errors.py` maps each to a status."""

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
    JOB_ENDED = "job ended"
    JOB_OPEN = "job open"
    SPEC_IMPOSSIBLE = "spec impossible"
    KEY_NOT_A_NUMBER = "key not a number"
    SUM_TOO_LARGE = "sum too large"
    REQUEST_ID_REUSED = "request id reused"
    KEYS_FORGOTTEN = "keys forgotten"
    KEYS_COMPACTED = "keys compacted"
    EVENTS_COMPACTED = "events compacted"
    INTERNAL = "internal error"


class Refusal(Struct, frozen=True):
    """A refused input: the kind and the facts that its detail message carries, never prose."""

    kind: RefusalKind
    facts: tuple[tuple[str, str | int], ...] = ()
    """Named values, in the order of the detail message's fields."""
    differences: tuple[tuple[str, str, str], ...] = ()
    """For SPEC_MISMATCH: (field, expected, actual)."""
