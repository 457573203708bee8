"""What hears the effects of turns: the messages to agents, and what readers and workers wait for.

Each listener hears its kinds of effects, in order, and then which jobs have changed. Whatever puts
a state together connects the listeners that its services need. The first one is the most urgent:
what it wakes runs first.

A bug in a listener ends neither the coordinator nor a job that it does not concern.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from rallypoint.base.log import get_logger, new_incident
from rallypoint.server.core.messages.effects import (
    BarrierOver,
    Effect,
    JobChanged,
    WriteAnswered,
)
from rallypoint.server.core.messages.inputs import JobBroken
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State

log = get_logger()


class Listener:
    """Hears what turns have decided that are in the journal. Never blocks."""

    KINDS: ClassVar[tuple[type[Effect], ...]] = ()
    """The effects that it hears; no other listener hears them."""
    WORKERS_WAIT: ClassVar[bool] = False
    """Workers wait for it, so a bug that keeps a decision from it ends their job."""

    epoch = 0
    """The coordinator's epoch as of the last turn in the journal."""
    durable = False
    """Its journal is durable."""

    def begin_turn(self, state: State) -> None:
        """Note that a turn is in the journal; its effects follow."""
        self.epoch, self.durable = state.epoch, state.durable

    def note(self, effect: Effect, state: State) -> None:
        """Carry out an effect of one of its kinds."""

    def note_job(self, job_id: JobId, state: State) -> None:
        """Note that the turn has changed a job, which may be gone."""

    def end_turn(self, state: State) -> None:
        """Note that the turn has no more effects."""

    def end(self) -> None:
        """End everything that waits: no turn will come."""


class Listeners:
    """The listeners of one state."""

    def __init__(self, state: State, *listeners: Listener) -> None:
        """Connect them with a state that is in the journal, the most urgent one first."""
        self._listeners = listeners
        self._by_kind = {kind: one for one in listeners for kind in one.KINDS}
        for one in listeners:
            one.begin_turn(state)

    def carry_out(
        self, effects: Sequence[Effect], changed: Collection[JobId], state: State
    ) -> Sequence[JobBroken]:
        """Carry out the effects of a journalled turn, in order, and note the jobs it has changed.

        Returns: The jobs that have to end, because a bug kept an effect from their workers.
        """
        broken: list[JobBroken] = []
        for listener in self._listeners:
            listener.begin_turn(state)
        noted = dict.fromkeys(changed)
        eventful = dict[JobId, None]()
        for effect in effects:
            if isinstance(effect, JobChanged):
                eventful[effect.job_id] = None
            one = self._by_kind.get(type(effect))
            if one is not None:
                try:
                    one.note(effect, state)
                except Exception as error:  # noqa: BLE001  # it is logged, and ends this job alone
                    _contain(error, one, _job_of(effect), broken)
        noted |= eventful  # a job that was forgotten is not among `changed`
        for listener in self._listeners:
            for job_id in noted:
                try:
                    listener.note_job(job_id, state)
                except Exception as error:  # noqa: BLE001  # it is logged, and ends this job alone
                    _contain(error, listener, job_id, broken)
            try:
                listener.end_turn(state)
            except Exception as error:  # noqa: BLE001  # it is logged; the next turn wakes them
                _contain(error, listener, None, broken)
        return broken

    def end(self) -> None:
        """End everything that waits: no turn will come."""
        for listener in self._listeners:
            listener.end()


def _job_of(effect: Effect) -> JobId | None:
    """Return the job whose workers or readers an effect concerns; None: it concerns an agent."""
    match effect:
        case BarrierOver(key=key):
            return key.job_id
        case WriteAnswered(job_id=job_id) | JobChanged(job_id=job_id):
            return job_id
        case _:
            return None


def _contain(
    error: Exception, listener: Listener, job_id: JobId | None, broken: list[JobBroken]
) -> None:
    """Log a bug in a listener; the job ends by it if its workers wait for the listener."""
    incident = new_incident()
    facts = {} if job_id is None else {"job_id": job_id}
    log.error("effect_failed", incident=incident, **facts, exc_info=error)
    if job_id is not None and listener.WORKERS_WAIT:
        broken.append(
            JobBroken(job_id, f"the coordinator's log has the cause (incident {incident})")
        )
