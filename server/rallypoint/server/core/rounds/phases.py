"""The phases of a run, and the events that lead from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType

from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.phase import Phase


class PhaseEvent(Enum):
    """What moves a run from one phase to another."""

    SEAL = "seal"  # a round gets its members and ranks, or a running one is adopted
    STOP = "stop"  # the running round is stopped everywhere
    SETTLE = "settle"  # every member is clean, lost or overdue, and the run continues
    CLOSE = "close"  # the run gets its outcome


TRANSITIONS: Mapping[tuple[Phase, PhaseEvent], Phase] = MappingProxyType(
    {
        (Phase.FORMING, PhaseEvent.SEAL): Phase.RUNNING,
        (Phase.RUNNING, PhaseEvent.STOP): Phase.STOPPING,
        (Phase.STOPPING, PhaseEvent.SETTLE): Phase.FORMING,
        (Phase.FORMING, PhaseEvent.CLOSE): Phase.CLOSED,
        (Phase.RUNNING, PhaseEvent.CLOSE): Phase.CLOSED,
        (Phase.STOPPING, PhaseEvent.CLOSE): Phase.CLOSED,
    }
)
"""A pair that is absent is forbidden. A run begins FORMING; after CLOSED only a new run begins."""


def next_phase(job: Job, event: PhaseEvent) -> Phase:
    """Return the phase that follows the job's phase by `event`.

    Raises:
        BrokenInvariant: when the table does not have it.
    """
    phase = TRANSITIONS.get((job.phase, event))
    if phase is None:
        raise BrokenInvariant(job.job_id, f"a {job.phase.value} run cannot {event.value}")
    return phase
