"""Applies the rules of the simulation to a small world.

A rule remembers what it has seen, so what it remembers is part of the state: `Ghosts` are the rules
as they are after one path, and `fork` lets the path part in two. The rules ask for agents,
processes and hosts; `Arena` answers with views of whatever state is being looked at.
"""

from __future__ import annotations

from copy import copy
from types import SimpleNamespace
from typing import Any, cast

from rallypoint.server.core.model.ids import JobId, SessionId
from rallypoint.server.core.model.round import RoundHeader
from sim.rules.exits import EXIT_RULES
from sim.rules.health import HEALTH_RULES, QuarantineYields
from sim.rules.overlap import OVERLAP_RULES
from sim.rules.rounds import ROUND_RULES
from sim.rules.rules import STEP_RULES, Checker
from sim.rules.runs import RUN_RULES, WorkersDoNotNotice
from sim.seeds.coverage import Coverage
from sim.seeds.scenario import NodePlan
from sim.small.small import JOB_ID, TIMING, Coordinator, Site, Worker, is_missed
from sim.world.wire import header_of

KINDS = tuple(
    kind
    for kind in (
        *STEP_RULES,
        *EXIT_RULES,
        *ROUND_RULES,
        *OVERLAP_RULES,
        *RUN_RULES,
        *HEALTH_RULES,
    )
    # These are about how long something lasts: here no time passes while anything can happen.
    if kind not in (WorkersDoNotNotice, QuarantineYields)
)


class Arena:
    """What a rule may ask of the world, as it is right now."""

    def __init__(self, plans: tuple[NodePlan, ...]) -> None:
        self.plans = plans
        self.sites: list[Site] = []
        self.coordinator: Coordinator | None = None
        self.speaking_life = 0
        """The coordinator whose message is being applied."""
        self.timing = TIMING
        self.disk = SimpleNamespace(is_durable=False)
        self.fleet = None
        """There are no other coordinators."""
        self.was_set_back = False
        self.now_ms = 0
        """Journal time of the coordinator's latest step."""
        self.agents_ms = 0
        """The clock of the agents."""
        self.coverage = Coverage()

    @property
    def server(self) -> Any:
        """The coordinator, or None."""
        if self.coordinator is None:
            return None
        return server_view(self.coordinator, self.now_ms, self)

    def server_of(self, job_id: JobId) -> Any:
        """Return the coordinator that serves a job: there is one for all."""
        return self.server

    @property
    def hosts(self) -> list[Any]:
        """All hosts."""
        return [self.host(number) for number in range(len(self.sites))]

    @property
    def agents(self) -> dict[SessionId, Any]:
        """All agents, by session."""
        found = [host.agent for host in self.hosts if host.agent is not None]
        return {agent.session: agent for agent in found}

    def plan_of(self, session: SessionId) -> NodePlan:
        """Return how the agent of a session was started."""
        return next(
            plan
            for plan, site in zip(self.plans, self.sites, strict=True)
            if site.session == session
        )

    def group(self, job_id: JobId, header: RoundHeader) -> Any:
        """Return the workers of a round."""
        assert job_id == JOB_ID
        processes = [
            worker
            for site in self.sites
            for worker in site.workers
            if header_of(worker.order) == header
        ]
        return SimpleNamespace(processes=processes)

    def host(self, number: int) -> Any:
        """Return one host with its agent and processes."""
        site = self.sites[number]
        host = SimpleNamespace(name=self.plans[number].name, plan=self.plans[number])
        stream = SimpleNamespace(life=self.speaking_life)
        dismissal = None if site.dismissed is None else SimpleNamespace(exit_code=site.dismissed)
        host.agent = SimpleNamespace(
            host=host,
            session=site.session,
            run=site.run,
            outcome=site.outcome,
            name=site.name,
            was_terminated=site.was_terminated,
            dismissal=dismissal,
            now_ms=lambda: self.agents_ms,
            exit_code=site.exit_due,
            is_gone=site.agent is None,
            state=site.agent,
            link=SimpleNamespace(stream=stream),
        )
        living = [worker for worker in site.workers if worker.is_alive]
        host.processes = [process_view(host, worker) for worker in living]
        return host


def server_view(coordinator: Coordinator, now_ms: int, arena: Arena) -> Any:
    """Return a coordinator as rules see it."""

    def is_gone(session: SessionId) -> bool:
        """Return whether the coordinator may have lost an agent."""
        return all(
            is_missed(site, coordinator.life, arena.agents_ms)
            for site in arena.sites
            if site.session == session
        )

    return SimpleNamespace(
        life=coordinator.life,
        is_durable=coordinator.state.durable,
        state=coordinator.state,
        now_ms=lambda: now_ms,
        is_missed=is_gone,
    )


def process_view(host: Any, worker: Worker) -> Any:
    """Return a process as rules see it."""
    return SimpleNamespace(
        pid=worker.pid,
        order=worker.order,
        rank=worker.rank,
        local_rank=worker.local_rank,
        host=host,
        agent=host.agent,
        group=SimpleNamespace(key=(JOB_ID, header_of(worker.order))),
        is_blocked=False,
    )


class Ghosts:
    """The rules with their memory after one path."""

    def __init__(self, arena: Arena) -> None:
        # The arena answers what these rules ask of a world.
        self._checkers = [kind(cast("Any", arena)) for kind in KINDS]
        self._keys = [_key(checker) for checker in self._checkers]
        self._is_own = [True] * len(KINDS)

    def fork(self) -> Ghosts:
        """Return a copy that remembers the same."""
        twin = copy(self)
        twin._checkers = list(self._checkers)
        twin._keys = list(self._keys)
        twin._is_own = [False] * len(KINDS)
        return twin

    def key(self) -> int:
        """Return a fingerprint of what the rules remember."""
        return hash(tuple(self._keys))

    def hear(self, happening: str, *facts: Any) -> None:
        """Pass an event to every rule that handles it; a broken one raises `Violation`."""
        for place in _listeners(happening):
            if not self._is_own[place]:
                self._checkers[place] = _copied(self._checkers[place])
                self._is_own[place] = True
            getattr(self._checkers[place], happening)(*facts)
            self._keys[place] = _key(self._checkers[place])


_heard: dict[str, tuple[int, ...]] = {}


def _listeners(happening: str) -> tuple[int, ...]:
    if happening not in _heard:
        _heard[happening] = tuple(
            place
            for place, kind in enumerate(KINDS)
            if getattr(kind, happening, None) is not getattr(Checker, happening, None)
        )
    return _heard[happening]


def _copied(checker: Checker) -> Checker:
    twin = copy(checker)
    for name, value in vars(checker).items():
        if isinstance(value, dict):
            setattr(twin, name, {key: _copied_set(one) for key, one in value.items()})
        elif isinstance(value, set):
            setattr(twin, name, set(value))
    return twin


def _copied_set(value: object) -> object:
    return set(value) if isinstance(value, set) else value


def _key(checker: Checker) -> int:
    """Return a fingerprint of a rule's memory: its sets and dictionaries."""
    return hash(
        tuple(_frozen(value) for value in vars(checker).values() if isinstance(value, dict | set))
    )


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((key, _frozen(one)) for key, one in value.items())
    return frozenset(value) if isinstance(value, set) else value
