"""Why a worker host takes no request."""

from __future__ import annotations


class WorkerHostError(Exception):
    """The worker host cannot accept a request."""


class HostClosed(WorkerHostError):
    """The host was closed, or its helper is lost."""

    def __init__(self) -> None:
        """Carry the reason, for people: a round that could not start shows it."""
        super().__init__("the helper process has ended")


class HostStuck(WorkerHostError):
    """The helper does not read, and the queue is full.

    Attributes:
        unsent_bytes: size of the queue.
    """

    def __init__(self, unsent_bytes: int) -> None:
        """Carry the size of the queue."""
        super().__init__(f"{unsent_bytes} bytes wait for the helper process")
        self.unsent_bytes = unsent_bytes


class HelperIrreplaceable(WorkerHostError):
    """The helper was a fork of this process as it was then, and is lost."""

    def __init__(self, pid: int) -> None:
        """Carry the helper's process id."""
        text = f"the helper (pid {pid}) was a fork of this process, and cannot be started again"
        super().__init__(text)
