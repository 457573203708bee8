"""What `rallypoint journal show` prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def events_in(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events in records."""
    logged = (one["record"] for one in records if one["kind"] == "events_logged")
    return [event for record in logged for event in record["events"]]
