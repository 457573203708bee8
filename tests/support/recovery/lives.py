"""Random lives of a job: everything that may happen, in any order, and then peace.

Agents here keep their own state and their own unacknowledged reports, as real ones do. Messages
reach them late or not at all, streams break at any time, agents and coordinators die. The bench
checks every step; when the faults stop, the job must come to rest.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.desired import (
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.job import WaitKind
from rallypoint.server.core.model.node import HeldRound, NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.model.worker import WorkerExit
from support.core.barriers import Meeting, rank
from support.core.coordinator import Bench, Death, Died
from support.core.fake_agents import FakeAgent, worker_exit
from support.core.keys import Sharing

NAMES = ("a", "b", "c", "d", "e")
PEACE_TICKS = 150
MakeReport = Callable[[inputs.Sender], inputs.Report]


@dataclass
class Life:
    """One agent process, with what the agent itself knows."""

    agent: FakeAgent
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
    lost_acknowledgements: random.Random | None = None
    """With it, every second acknowledgement is lost: the report is sent again after a Hello."""

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
            if kept or (self.lost_acknowledgements and self.lost_acknowledgements.random() < 0.5):
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

    def __init__(self, seed: int, *, durable: bool = False) -> None:
        self.durable = durable
        self.chance = random.Random(seed)
        low = self.chance.randint(1, 3)
        self.spec = JobSpec(
            min_nodes=low,
            max_nodes=low + self.chance.randint(0, 2),
            max_restarts=self.chance.choice((0, 3, 50)),
            join_timeout_ms=self.chance.choice((20_000, 600_000)),
            shutdown_timeout_ms=2_000,
            grow=self.chance.random() < 0.7,
        )
        if durable:
            self.spec = replace(
                self.spec,
                quarantine_after=self.chance.choice((0, 1, 2)),
                quarantine_cooldown_ms=10_000,
                fence_ms=self.chance.choice((0, 0, 4_000)),
                restart_backoff_ms=self.chance.choice((0, 2_000)),
            )
        # Nothing was at work before it, so it has no window.
        self.bench = Bench(self.spec, durable=durable, timing=Timing(window_ms=0))
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
            self.lives.append(Life(agent))
            self.lives[-1].lost_acknowledgements = self.chance if self.durable else None

    def replace_coordinator(self) -> None:
        """Let the coordinator die; the next one has its journal, or knows nothing and listens."""
        if self.durable:
            self.restart()
            return
        old = self.bench
        epoch = old.state.epoch + 1
        self.bench = Bench(self.spec, window_ms=2_500, coordinator_id=f"c{epoch}", epoch=epoch)
        for life in self.lives:
            life.connected = False
            self.bench.adopt_agent(life.agent)

    def restart(self) -> None:
        """Let the coordinator start again from its journal."""
        self.bench.restart()
        for life in self.lives:
            life.connected = False

    def plan_death(self) -> None:
        """Let the coordinator die in one of its next steps, before or after the append."""
        if self.durable:
            self.bench.death = Death(self.chance.randint(0, 4), self.chance.random() < 0.5)

    def misfortune(self) -> None:
        """Let one thing happen."""
        try:
            self._let_one_happen()
        except Died:
            self.replace_coordinator()

    def _let_one_happen(self) -> None:
        if self.chance.random() < 0.3:
            self.bench.advance(self.chance.choice((10, 100, 600, 3_000, 7_000)))
        if not self.alive or self.chance.random() < 0.12:
            self.spawn()
            return
        known = (*MISFORTUNES, *OPERATIONS) if self.durable else MISFORTUNES
        events, weights = zip(*known, strict=True)
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

    def peace(self) -> None:
        """Let every agent act as it should, for long enough."""
        self.bench.death = None
        for job in tuple(self.bench.state.jobs.values()):
            for known in job.health:
                self.bench.take(inputs.Uncordon(job.job_id, known.name, ""))
        for _ in range(PEACE_TICKS):
            for life in self.alive:
                life.agent.beats = True
                self.go_on(life)
            self.bench.advance(1_000)

    def check_rest(self) -> None:
        """Check that the job is at rest, and that the nodes run what the coordinator ordered."""
        job = next(iter(self.bench.state.jobs.values()), None)
        if job is None or job.phase is Phase.CLOSED:
            assert not any(life.has_session for life in self.alive)
            return
        waiting = self.bench.wait()
        if job.phase is Phase.FORMING:
            assert waiting is not None
            assert WaitKind.NODES is waiting.kind
            assert waiting.ready_nodes < self.spec.min_nodes
            assert not any(life.running for life in self.alive)
            return
        assert (Phase.RUNNING, None) == (job.phase, waiting)
        assert job.round is not None
        runners = [life for life in self.alive if life.running is not None]
        headers = {life.running.header for life in runners if life.running is not None}
        assert {job.round.header} == headers
        missing = len(job.round.succeeded_gone)
        assert len(runners) == job.round.header.group_world_size - missing


MISFORTUNES: tuple[tuple[Callable[[World, Life], None], int], ...] = (
    (World.go_on, 60),
    (lambda world, life: life.break_off(), 8),
    (lambda world, life: life.fail(), 5),
    (lambda world, life: life.succeed(), 11),
    (lambda world, life: life.block(), 3),
    (World.fall_silent, 3),
    (World.die, 4),
    (World.leave, 2),
    (lambda world, life: world.replace_coordinator(), 2),
    (lambda world, life: world.plan_death(), 4),
)
"""What may happen, and how often among a hundred times."""
OPERATIONS: tuple[tuple[Callable[[World, Life], None], int], ...] = (
    (World.operate, 4),
    (World.drain, 2),
    (World.share, 12),
)
"""What happens besides in the life of a durable coordinator."""
