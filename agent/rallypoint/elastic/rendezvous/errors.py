"""What may go wrong when nodes meet. The names are torch's, the classes are not."""

from __future__ import annotations


class RendezvousError(Exception):
    """The base of all errors of a rendezvous."""


class RendezvousClosedError(RendezvousError):
    """The job has ended: no further round begins."""


class RendezvousTimeoutError(RendezvousError):
    """No round began in time."""


class RendezvousConnectionError(RendezvousError):
    """The coordinator cannot be reached, or does not answer any more."""


class RendezvousStateError(RendezvousError):
    """The coordinator refuses this node: it does not fit the job."""


class RendezvousGracefulExitError(RendezvousError):
    """The job has ended while this node was a spare. Nothing has failed."""
