"""The phase of a run, and its outcome."""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """The phase of a run."""

    FORMING = "forming"
    RUNNING = "running"
    STOPPING = "stopping"
    CLOSED = "closed"


class Outcome(Enum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
