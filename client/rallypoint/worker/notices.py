"""What the agent has announced to its workers. Reading it takes a file, and no network."""

from __future__ import annotations

import time
from typing import NamedTuple


class Notice(NamedTuple):
    """An event that will stop the round."""

    kind: str
    """"drain", or "growth": nodes will be added. A newer agent may know others."""
    node: str
    """The node that leaves; empty for growth."""
    is_here: bool
    """It is the node of this worker."""
    reason: str
    """Why, in words."""
    deadline_s: float
    """When it happens at the latest, by `time.monotonic()` of this machine."""

    @property
    def is_leaving(self) -> bool:
        """True when this worker's node leaves: after a checkpoint the worker may exit with 0."""
        return self.is_here and self.kind == "drain"

    def time_left_s(self) -> float:
        """Return how long the worker has; 0 when it is over."""
        return max(0.0, self.deadline_s - time.monotonic())


def read_notices(path: str) -> tuple[Notice, ...]:
    """Return the notices in this file, soonest first; none if there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return ()
    import json  # only when something is announced

    return tuple(
        Notice(one["kind"], one["node"], one["here"], one["reason"], one["deadline"])
        for one in json.loads(text)
    )
