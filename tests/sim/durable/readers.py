"""Readers of jobs and events, all along: what they have seen, nothing may take back.

They read through the product's own views. Everything here is drawn from a separate generator, so
the other choices of a seed stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from rallypoint.server.api.events import reading
from rallypoint.server.api.events.views import event_message
from rallypoint.server.api.jobs.job import latest_run_message, past_round_message, past_run_message
from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.core.model.events import Event
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.job import HISTORY_MAX, RUNS_MAX
from rallypoint.server.shell.coordinator import InputRefused
from rallypoint.v1 import job_pb2
from sim.rules.rules import Checker, Violation
from support.core.decisions import Record

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

LOOK_MS_MAX = 3_000
"""Pause between two looks."""
EVERYTHING = 1 << 30


@dataclass(frozen=True, slots=True)
class Seen:
    """The lasting facts of a job, as GetJob, ListRounds and ListRuns show them."""

    epoch: int
    revision: int
    run: int
    round: int
    """Number of its latest round; 0 for none."""
    current: int
    """Number of the round that runs or is being stopped; 0 for none."""
    restart_count: int
    outcome: int | None
    """None while the run is open."""
    cordoned: frozenset[NodeName]
    history: tuple[tuple[int, bytes], ...]
    """Ended rounds by number, with everything that is shown of them but times."""
    runs: tuple[tuple[int, int], ...]
    """Ended runs with their outcomes."""

    @property
    def history_max(self) -> int:
        """How many rounds are remembered."""
        return HISTORY_MAX

    @property
    def has_all_runs(self) -> bool:
        """Whether no run has been dropped."""
        return len(self.runs) < RUNS_MAX - 1


class Readers:
    """Everyone who reads in a seed."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._rng = Random(f"{world.seed} readers")
        self._event_rule = world.safety.find(EventsGoOn)
        self._after: dict[int, int] = {}
        """The latest event that was read, by the life of the coordinator."""
        self._look_later()

    def _look_later(self) -> None:
        self.world.clock.after(self._rng.randint(1, LOOK_MS_MAX), self._look)

    def _look(self) -> None:
        servers: dict[int, Server] = {}
        for job in self.world.jobs:
            server = self.world.server_of(job.job_id)
            if server is not None and server.busy_until_ms <= self.world.clock.now_ms:
                self.world.read_rule.read(server, job.job_id, look(server, job.job_id))
                servers[server.life] = server
        for server in servers.values():
            self._read_events(server)
        self._look_later()

    def _read_events(self, server: Server) -> None:
        """Read the events since the last look, as a client of ListEvents does."""
        after = self._after.get(server.life, 0)
        asked = reading.Asked(None, frozenset(), after)
        try:
            place = reading.begin(asked, server.state)
            reading.check_place(asked, place, server.state)
        except InputRefused as refused:
            if server.is_durable:
                text = f"after {after}: {refused.refusal}"
                raise Violation("EventsGoOn", text) from refused
            place = reading.Place(0, 0)  # an agent knew a later coordinator: begin with the oldest
            self._event_rule.begin_again(server)
        found = server.state.events.find(None, place.after, EVERYTHING)
        for event in found.events:
            event_message(event, server.state.clocks, server.now_ms())
        self._event_rule.read(server, found.events)
        self._after[server.life] = found.looked_at


def look(server: Server, job_id: JobId) -> Seen | None:
    """Return what a reader sees of a job; None: there is no such job."""
    state, now_ms = server.state, server.now_ms()
    job = state.jobs.get(job_id)
    if job is None:
        return None
    message = job_message(state, job, now_ms)
    latest = latest_run_message(job, state.clocks, now_ms)
    runs = [past_run_message(run, state.clocks, now_ms) for run in job.runs]
    rounds = [past_round_message(one, state.clocks, now_ms) for one in job.history]
    for one in rounds:
        _drop_times(one)
    is_open = message.outcome == job_pb2.OUTCOME_OPEN
    return Seen(
        epoch=server.outboxes.epoch,
        revision=message.revision,
        run=message.run,
        round=max(latest.round, message.round.header.number),
        current=message.round.header.number,
        restart_count=message.restart_count,
        outcome=None if is_open else message.outcome,
        cordoned=frozenset(NodeName(one.node_name) for one in message.health if one.cordoned),
        history=tuple((one.number, one.SerializeToString()) for one in rounds),
        runs=tuple((run.run, run.outcome) for run in runs),
    )


def _drop_times(one: job_pb2.RoundSummary) -> None:
    """Drop what is different at every look."""
    for name in ("began_at", "ended_at"):
        one.ClearField(name)
    for failed in (one.verdict.culprit, *one.verdict.collateral) if one.HasField("verdict") else ():
        failed.exit.ClearField("age")


class EventsGoOn(Checker):
    """A reader of events gets every one that was journalled, once and in order, and none else."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._left: dict[int, list[Event]] = {}
        """Journalled, and not read yet, by the life of the coordinator."""

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, EventsLogged):
            self._left.setdefault(server.life, []).extend(record.events)

    def restored(self, before: Server, after: Server) -> None:
        last = before.state.events.last
        found = after.state.events.find(None, last, EVERYTHING).events
        self._left.setdefault(after.life, []).extend(found)

    def begin_again(self, server: Server) -> None:
        """A reader begins with the oldest event that is kept: all of this life."""
        self._left[server.life] = list(server.state.events.find(None, 0, EVERYTHING).events)

    def read(self, server: Server, events: list[Event]) -> None:
        """Someone has read all events since the last time."""
        wanted = self._left.pop(server.life, [])
        if events != wanted:  # the text takes long
            numbers = [one.sequence for one in events], [one.sequence for one in wanted]
            self.require(False, f"events {numbers[0]} and not {numbers[1]}")
