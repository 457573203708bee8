"""What readers of events may rely on, judged by what was journalled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rallypoint.server.core.messages.records import EventsLogged, JobForgotten
from rallypoint.server.core.model.events import Event, EventKind
from rallypoint.server.core.model.ids import JobId
from sim.rules.rules import Checker
from support.core.decisions import (
    Record,
    RoundSealed,
    RoundSettled,
    RoundStopped,
    RunClosed,
    RunOpened,
)

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

Fact = tuple[JobId, str, int]
"""A job, what happened to it, and the round or run that it is about."""


class EventsAreTheJournal(Checker):
    """Every decision that readers care about has one event, in its step; numbers only ascend."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[int, int] = {}
        """The latest sequence of each coordinator."""
        self._decided: list[Fact] = []
        """Decisions of the step whose events have not come yet."""
        self._open: dict[tuple[int, JobId], int] = {}
        """The sealed round of each job that no event has ended yet."""

    def recorded(self, server: Server, record: Record) -> None:
        match record:
            case RoundSealed(job_id=job_id, header=header):
                self._decided.append((job_id, "begun", header.number))
            case RoundStopped(job_id=job_id, round=round):
                self._decided.append((job_id, "stopped", round))
            case RoundSettled(job_id=job_id, round=round):
                self._decided.append((job_id, "settled", round))
            case RunClosed(job_id=job_id, run=run):
                self._decided.append((job_id, "closed", run))
            case JobForgotten(job_id=job_id):
                self._decided.append((job_id, "deleted", 0))
            case RunOpened(job_id=job_id, run=run):
                # A relaunch with other flags closes the run before, in the same step.
                others = [fact for fact in self._decided if fact != (job_id, "closed", run - 1)]
                self.require(not others, f"no events of {others}")
            case EventsLogged(events=events):
                for event in events:
                    self._check(server, event)
                self.require(not self._decided, f"no events of {self._decided}")

    def _check(self, server: Server, event: Event) -> None:
        last = self._last.get(server.life, 0)
        self.require(event.sequence > last, f"{event} after {last}")
        self._last[server.life] = event.sequence
        place = (server.life, event.job_id)
        what = _DECISIONS.get(event.kind)
        if what == "begun":
            self.require(place not in self._open, f"{event}: an earlier round is open")
            self._open[place] = event.round
        elif what in ("stopped", "settled"):
            self.require(self._open.get(place) == event.round, f"{event}: it was not sealed")
        if what in ("settled", "closed", "deleted"):
            self._open.pop(place, None)
        if what is not None:
            number = {"closed": event.run, "deleted": 0}.get(what, event.round)
            fact = (event.job_id, what, number)
            self.require(fact in self._decided, f"{event}: it was not decided")
            self._decided.remove(fact)


_DECISIONS = {
    EventKind.ROUND_SEALED: "begun",
    EventKind.ROUND_ADOPTED: "begun",
    EventKind.ROUND_STOPPED: "stopped",
    EventKind.ROUND_SETTLED: "settled",
    EventKind.RUN_CLOSED: "closed",
    EventKind.JOB_DELETED: "deleted",
}
