"""A coordinator that starts again decides what it would have decided had only the streams broken.

Random histories are continued twice: once every stream breaks, once the coordinator starts again.
In both all agents return at once, and send every report that was not acknowledged once more.

Agents here keep their own state and their own unacknowledged reports, as real ones do. Messages
reach them late or not at all, streams break at any time, agents and coordinators die. The bench
checks every step.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.durable import durable_job
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import (
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.shell.clock import continue_ms
from support.core.barriers import Meeting, rank
from support.core.coordinator import Bench, Death, Died
from support.core.fake_agents import FakeAgent, worker_exit
from support.core.keys import Sharing

NAMES = ("a", "b", "c", "d", "e")
MakeReport = Callable[[inputs.Sender], inputs.Report]


@dataclass
class Life:
    """One agent process, with what the agent itself knows."""

    agent: FakeAgent
    chance: random.Random
    """Every second acknowledgement is lost: the report is sent again after a Hello."""
    connected: bool = False
    given: int = 0
    """Highest round that reached it."""
    running: DesiredRun | None = None
    state: NodeState = NodeState.READY
    exits: list[WorkerExit] = field(default_factory=list)
    reports: list[tuple[int, MakeReport]] = field(default_factory=list)
    """Not acknowledged yet."""
    sequence: int = 0
    over: bool = False

    @property
    def has_session(self) -> bool:
        node = self.agent.node
        return node is not None and node.connection == self.agent.connection

    def report(self, make: MakeReport) -> None:
        """Keep a report until it is acknowledged, and send it if there is a connection."""
        self.sequence += 1
        self.reports.append((self.sequence, make))
        if self.connected:
            self.deliver()

    def deliver(self) -> None:
        kept: list[tuple[int, MakeReport]] = []
        for at, (sequence, make) in enumerate(self.reports):
            taken = self.agent.bench.take(make(self.agent.sender(sequence)))
            if taken.refusal is not None:
                self.connected = False
                self.reports = [*kept, *self.reports[at:]]
                return
            if kept or self.chance.random() < 0.5:
                kept.append((sequence, make))
        self.reports = kept

    def connect(self) -> None:
        """Say Hello with everything that is known, then what was not acknowledged."""
        acknowledged = self.reports[0][0] - 1 if self.reports else self.sequence
        held = None
        if self.running is not None:
            place = self.running.assignment
            held = HeldRound(
                self.running.header,
                place,
                self.state,
                (4_000,),
                tuple(self.exits),
            )
        answer = self.agent.hello(held=held, acknowledged=acknowledged, ready_round=self.given)
        if answer.refusal is None:
            self.connected = True
            self.deliver()
        elif answer.refusal.kind is RefusalKind.OLD_RUN:
            self.over = True

    def break_off(self) -> None:
        if self.connected:
            self.connected = False
            self.agent.break_off()

    def act(self) -> None:
        """Make the latest desired state true."""
        match self.agent.desired:
            case DesiredRun() as run if run.header.number > self.given:
                self.begin(run)
            case DesiredRun():
                pass
            case DesiredStop(round=number):
                self.stop(number)
            case DesiredStandby() if self.running is not None:
                self.stop(self.given)
            case DesiredFinished() | DesiredReleased():
                self.running = None
                self.over = True
                self.report(lambda sender: inputs.Goodbye(sender, "finished"))
            case _:
                pass

    def begin(self, run: DesiredRun) -> None:
        assert self.running is None, "a round was begun while another one runs"
        self.given = run.header.number
        self.running, self.state, self.exits = run, NodeState.STARTED, []
        self.report(lambda sender: inputs.Started(sender, run.header.number, (4_000,)))

    def stop(self, number: int) -> None:
        self.given = max(self.given, number)
        self.running = None
        if self.state is not NodeState.READY or not self.is_known_clean():
            self.state = NodeState.READY
            self.agent.port += 1
            offer = inputs.ReadyPort(self.given, self.agent.port)
            self.report(lambda sender: inputs.Ready(sender, offer))

    def is_known_clean(self) -> bool:
        node = self.agent.node
        return node is not None and node.state is NodeState.READY

    def fail(self) -> None:
        if self.running is not None and self.state is NodeState.STARTED:
            number, exit = self.running.header.number, worker_exit(1)
            self.state = NodeState.FAILED
            self.exits.append(exit)
            self.report(lambda sender: inputs.Exited(sender, number, (exit,)))

    def succeed(self) -> None:
        if self.running is not None and self.state is NodeState.STARTED:
            number, exit = self.running.header.number, worker_exit(0)
            self.state = NodeState.SUCCEEDED
            self.exits.append(exit)
            self.report(lambda sender: inputs.Exited(sender, number, (exit,)))
            self.report(lambda sender: inputs.Succeeded(sender, number))

    def block(self) -> None:
        number = self.given
        if self.running is not None and isinstance(self.agent.desired, DesiredStop):
            self.state = NodeState.BLOCKED
            self.report(lambda sender: inputs.Blocked(sender, number, (4_000,)))


class World:
    """A coordinator, its agents, and the random choices that drive them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        low = self.chance.randint(1, 3)
        self.spec = JobSpec(
            min_nodes=low,
            max_nodes=low + self.chance.randint(0, 2),
            max_restarts=self.chance.choice((0, 3, 50)),
            join_timeout_ms=self.chance.choice((20_000, 600_000)),
            shutdown_timeout_ms=2_000,
            grow=self.chance.random() < 0.7,
            quarantine_after=self.chance.choice((0, 1, 2)),
            quarantine_cooldown_ms=10_000,
            fence_after_ms=self.chance.choice((0, 0, 4_000)),
            restart_backoff_ms=self.chance.choice((0, 2_000)),
        )
        # Nothing was at work before it, so it has no window.
        self.bench = Bench(self.spec, durable=True, timing=Timing(window_ms=0))
        self.lives: list[Life] = []
        self.requests = 0

    @property
    def alive(self) -> list[Life]:
        return [life for life in self.lives if not life.over]

    def spawn(self) -> None:
        used = {life.agent.identity.name for life in self.alive}
        free = [name for name in NAMES if name not in used]
        if free:
            agent = self.bench.agent(self.chance.choice(free), workers=self.chance.randint(1, 2))
            self.lives.append(Life(agent, self.chance))

    def restart(self) -> None:
        """Let the coordinator start again from its journal."""
        self.bench.restart()
        for life in self.lives:
            life.connected = False

    def plan_death(self) -> None:
        """Let the coordinator die in one of its next steps, before or after the append."""
        self.bench.death = Death(self.chance.randint(0, 4), self.chance.random() < 0.5)

    def misfortune(self) -> None:
        """Let one thing happen."""
        try:
            self._let_one_happen()
        except Died:
            self.restart()

    def _let_one_happen(self) -> None:
        if self.chance.random() < 0.3:
            self.bench.advance(self.chance.choice((10, 100, 600, 3_000, 7_000)))
        if not self.alive or self.chance.random() < 0.12:
            self.spawn()
            return
        events, weights = zip(*MISFORTUNES, strict=True)
        (event,) = self.chance.choices(events, weights)
        event(self, self.chance.choice(self.alive))

    def fall_silent(self, life: Life) -> None:
        """Turn heartbeats off, or on again."""
        life.agent.beats = not life.agent.beats

    def die(self, life: Life) -> None:
        """End an agent's process without a word."""
        life.break_off()
        life.over = True

    def leave(self, life: Life) -> None:
        """End an agent's process with a Goodbye."""
        if life.connected:
            life.over = True
            life.report(lambda sender: inputs.Goodbye(sender, "signal"))

    def operate(self, life: Life) -> None:
        """Let an operator request something of the job, or of a node."""
        name, job_id = life.agent.identity.name, life.agent.identity.job_id
        self.requests += 1
        request_id = f"r{self.requests}"
        operations: tuple[inputs.Operation, ...] = (
            inputs.DrainNode(
                job_id, name, self.chance.choice((0, 2_000, 9_000)), "why", request_id
            ),
            inputs.Cordon(job_id, name, "bad disk", request_id),
            inputs.Uncordon(job_id, name, request_id),
            inputs.RestartJob(job_id, 0, "new data", request_id),
            inputs.UpdateJob(job_id, max_restarts=self.chance.randint(0, 9), request_id=request_id),
            inputs.CancelJob(job_id, 0, "enough", request_id),
        )
        (one,) = self.chance.choices(operations, (4, 2, 4, 2, 2, 1))
        self.bench.take(one)

    def drain(self, life: Life) -> None:
        """Let an agent announce that it leaves."""
        if life.connected:
            life.report(lambda sender: inputs.Draining(sender, 3_000, "SIGTERM"))

    def share(self, life: Life) -> None:
        """Let workers arrive at a barrier, write a key and report their progress."""
        job = self.bench.state.jobs.get(life.agent.identity.job_id)
        if job is None or job.phase is not Phase.RUNNING or job.round is None:
            return
        number = self.chance.randrange(job.round.header.world_size)
        Meeting(self.bench, self.chance.choice("xy")).arrive(rank(number))
        keys = Sharing(self.bench, of_run=self.chance.random() < 0.5)
        keys.add("n", 1)
        self.bench.take(inputs.Progressed(keys.claim, self.bench.now_ms // 10_000))

    def go_on(self, life: Life) -> None:
        """Let an agent do the next sensible thing."""
        if not life.has_session:
            life.connected = False
        if life.connected:
            life.act()
        else:
            life.connect()


MISFORTUNES: tuple[tuple[Callable[[World, Life], None], int], ...] = (
    (World.go_on, 60),
    (lambda world, life: life.break_off(), 8),
    (lambda world, life: life.fail(), 5),
    (lambda world, life: life.succeed(), 11),
    (lambda world, life: life.block(), 3),
    (World.fall_silent, 3),
    (World.die, 4),
    (World.leave, 2),
    (lambda world, life: world.restart(), 2),
    (lambda world, life: world.plan_death(), 4),
    (World.operate, 4),
    (World.drain, 2),
    (World.share, 12),
)
"""What may happen, and how often among the sum of all weights."""


def live(seed: int, steps: int) -> World:
    """Return a world after a random history, in which every node that is known has an agent."""
    world = World(seed)
    for _ in range(steps):
        world.misfortune()
    world.bench.death = None
    for life in world.lives:
        life.agent.beats = True
    present = {life.agent.session for life in world.alive}
    while not present.issuperset(world.bench.state.nodes):  # a dead agent, until it is lost
        world.bench.advance(1_000)
        for life in world.alive:
            world.go_on(life)
    return world


def continue_twice(before: World) -> tuple[World, World]:
    """Return the worlds in which the streams have broken, and the coordinator has started again."""
    broken, restarted = before, copy.deepcopy(before)
    broken.bench.now_ms = continue_ms(broken.bench.now_ms)
    for life in broken.lives:
        life.break_off()
    restarted.restart()
    for world in (broken, restarted):
        for life in world.alive:
            life.connect()
    return broken, restarted


def without_epoch(job: Job) -> Job:
    """Return what both must agree about.

    A coordinator that starts again may give nodes more time to come.
    """
    round = job.round
    if round is not None:
        round = replace(round, header=replace(round.header, epoch=0, master_port=1))
    return durable_job(
        replace(job, round=round, since_epoch=0, spec_revision=0, forming_since_ms=0)
    )


@pytest.mark.parametrize("steps", [20, 40, 60])
@pytest.mark.parametrize("seed", range(40))
def test_start_is_no_more_than_broken_streams(seed: int, steps: int) -> None:
    """Every durable fact of the job is the same once all agents are back."""
    broken, restarted = continue_twice(live(seed, steps))

    one, other = broken.bench.state, restarted.bench.state
    assert one.jobs.keys() == other.jobs.keys()
    for job_id, job in one.jobs.items():
        assert without_epoch(job) == without_epoch(other.jobs[job_id])
    assert (one.barriers, one.arrivals, one.counted) == (
        other.barriers,
        other.arrivals,
        other.counted,
    )
    assert (one.keys, one.holding, one.gone) == (other.keys, other.holding, other.gone)
