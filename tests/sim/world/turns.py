"""The steps of one turn and what they have decided, as the product's stepper collects it."""

from __future__ import annotations

from rallypoint.server.core.invariants import check_job, check_touched
from rallypoint.server.core.memory.notes import ValuesBefore, note_changes
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Effect
from rallypoint.server.core.messages.records import ClockMeasured, NodeRemoved
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.state.state import State, apply
from rallypoint.server.core.step import Transition
from support.core import decisions


class Steps:
    """One turn."""

    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self.unix_ms = 0
        """The wall clock when it began, if it was measured."""
        self.keeps_time = False
        """A record was added although the clocks are as far apart as before."""
        self.records: list[JournalRecord] = []
        self.effects: list[Effect] = []
        self.changed: dict[JobId, None] = {}
        self.stepped: list[tuple[inputs.Input, Refusal | None]] = []
        self._before = ValuesBefore()

    def measure(self, unix_ms: int, *, keeps_time: bool = False) -> None:
        """Compare the clocks; keep the time that has passed."""
        self.unix_ms, self.keeps_time = unix_ms, keeps_time
        records = self.state.clocks.measure(self.now_ms, unix_ms)
        self.records += records or [ClockMeasured(self.now_ms, unix_ms)] * keeps_time

    def step(self, input: inputs.Input) -> Transition:
        """Take a step."""
        transition = decisions.step(self.state, input, self.now_ms)
        self._before.keep(self.state, transition.delta)
        apply(self.state, transition.delta)
        self.records += decisions.journalled(transition.records)
        self.effects += transition.effects
        self.changed.update(dict.fromkeys(transition.delta.revised))
        self.stepped.append((input, transition.refusal))
        return transition

    def check(self, transition: Transition) -> None:
        """Check what a step has touched; raise BrokenInvariant if it does not hold."""
        check_touched(self.state, transition.delta)
        for job_id in transition.jobs:
            if job_id in self.state.jobs:
                check_job(self.state, job_id)

    @property
    def lost(self) -> frozenset[SessionId]:
        """Nodes that it has removed."""
        removed = (record for record in self.records if isinstance(record, NodeRemoved))
        return frozenset(record.session for record in removed)

    def close(self) -> None:
        """Note what has changed of jobs and nodes."""
        self.records += note_changes(self._before, self.records, self.state)
