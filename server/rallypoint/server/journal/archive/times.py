"""Moves the times of records to another clock.

Journal time is that of one coordinator. When the journals of several become one, those that are
behind are moved forward, so that every age and every deadline stays what it is.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import fields, replace

MOMENTS = frozenset(
    {
        *("at_ms", "until_ms", "deadline_ms", "opened_ms", "closed_ms", "forming_since_ms"),
        *("disrupted_ms", "backoff_until_ms", "empty_since_ms", "unknown_past_until_ms"),
        *("failures_ms", "quarantined_until_ms", "fenced_until_ms", "sealed_ms", "started_ms"),
        *("first_failure_ms", "drain_first_ms", "drain_last_ms", "stop_ms", "began_ms", "ended_ms"),
        *("window_until_ms", "origin_ms", "detected_ms", "told_ms", "stopped_ms", "swept_ms"),
        *("imported_ms", "process_group_ms", "first_step_ms", "missed_ms"),
    }
)
"""Fields with moments of journal time."""
OTHERS = frozenset(
    {
        *("join_timeout_ms", "last_call_ms", "settle_ms", "grow_after_ms", "shutdown_timeout_ms"),
        *("restart_backoff_ms", "fence_ms", "quarantine_window_ms", "quarantine_cooldown_ms"),
        *("progress_ms", "heartbeat_interval_ms", "lease_ms", "before_exit_ms", "ago_ms", "ran_ms"),
        *("signalled_before_ms", "failed_ms", "started_after_ms", "lasted_ms"),
        *("recovered_after_ms", "unix_ms"),
    }
)
"""Fields with lengths of time, or with a moment of another clock."""

_Value = TypeVar("_Value")


def moved(value: _Value, by_ms: int) -> _Value:
    """Return a value with all its moments later by so much; what is not set stays so.

    Args:
        value: a struct of the journal, or tuples of them.
        by_ms: how much later.
    """
    result: Any = value
    if isinstance(value, Struct):
        changes = {
            name: after
            for name, default in _fields_of(type(value))
            if (before := getattr(value, name)) != default
            and (after := _moved_field(name, before, by_ms)) is not before
        }
        result = replace(value, **changes) if changes else value
    elif type(result) is tuple:
        parts = tuple(moved(one, by_ms) for one in result)
        is_same = all(one is other for one, other in zip(parts, result, strict=True))
        result = value if is_same else parts
    found: _Value = result
    return found


def _moved_field(name: str, value: Any, by_ms: int) -> Any:
    if name not in MOMENTS:
        return moved(value, by_ms)
    if isinstance(value, tuple):
        return tuple(one + by_ms for one in value)
    return None if value is None else value + by_ms


@cache
def _fields_of(kind: type[Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the names of the fields of a struct, and what each is when nothing is known."""
    return tuple((one.name, one.default) for one in fields(kind))
