"""Fake agents for a coordinator's core: they number their reports and keep what they receive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Send, Welcome
from rallypoint.server.core.model.desired import Desired, DesiredFinished, DesiredRun, DesiredStop
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.node import (
    HeldRound,
    Identity,
    KnownAddresses,
    Node,
    NodeState,
    Program,
)
from rallypoint.server.core.model.round import Milestone, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.core.step import Transition

if TYPE_CHECKING:
    from support.core.coordinator import Bench

JOB = JobId("job")


def identity(
    name: str,
    spec: JobSpec,
    *,
    session: int = 1,
    job_id: str = JOB,
    explicit: bool = True,
    address: str = "",
    workers: int = 1,
    role: str = "default",
    node_rank: int | None = None,
    launch_id: str = "",
    program: Program | None = None,
) -> Identity:
    """Return the identity of a node."""
    return Identity(
        job_id=JobId(job_id),
        session=SessionId(f"{session:032x}"),
        spec=spec,
        name=NodeName(name),
        name_explicit=explicit,
        address=address or f"10.0.0.{session % 250 + 1}",
        local_world_size=workers,
        role=role,
        node_rank=node_rank,
        launch_id=launch_id,
        program=program,
    )


def worker_exit(
    exit_code: int | None = 1,
    *,
    local_rank: int = 0,
    signal: int | None = None,
    said: str = "",
    ran_ms: int = 60_000,
    prompted: bool = False,
) -> WorkerExit:
    """Return how a worker ended; `signal` outranks `exit_code`."""
    return WorkerExit(
        local_rank=local_rank,
        pid=4_000 + local_rank,
        exit_code=None if signal is not None else exit_code,
        signal=signal,
        agent_signalled_first=prompted,
        ran_ms=ran_ms,
        error=ErrorRecord(said) if said else None,
    )


@dataclass
class FakeAgent:
    """One agent: it numbers its reports and connections, and keeps what it receives."""

    bench: Bench
    identity: Identity
    connection: int = 0
    sequence: int = 0
    epoch: int = 0
    run: int = 0
    coordinator_id: str = ""
    port: int = 20_000
    last_round: int = 0
    """Highest round that it was ordered to run."""
    started: int = 0
    """Latest round that it started."""
    clean: int = 0
    """Latest round after which it reported Ready."""
    revision: int = 0
    desired: Desired | None = None
    told: list[Desired] = field(default_factory=list)
    """Everything that it received, oldest first, without repetitions."""
    known_addresses: KnownAddresses = field(default_factory=KnownAddresses)
    """Of the coordinator's host, as its next Hello has them."""
    beats: bool = True
    """Whether heartbeats are sent as time passes."""

    @property
    def session(self) -> SessionId:
        """Its incarnation."""
        return self.identity.session

    @property
    def node(self) -> Node | None:
        """What the coordinator knows of it, if anything."""
        return self.bench.state.nodes.get(self.session)

    @property
    def group_rank(self) -> int | None:
        """Its place in the round that it has to run; None when it has to run none."""
        if not isinstance(self.desired, DesiredRun):
            return None
        return self.known_node.assignment.group_rank if self.known_node.assignment else None

    @property
    def known_node(self) -> Node:
        """What the coordinator knows of it."""
        return self.bench.state.nodes[self.session]

    def sender(self, sequence: int = 0) -> inputs.Sender:
        """Return the sender of its inputs, with the present connection."""
        return inputs.Sender(self.session, self.connection, self.epoch, sequence)

    def hello(
        self,
        *,
        held: HeldRound | None = None,
        acknowledged: int | None = None,
        ready_round: int | None = None,
        coordinator_id: str | None = None,
        durable: bool = False,
        draining: tuple[int, str] | None = None,
        is_proven: bool | None = None,
    ) -> Transition:
        """Send a Hello on a new connection: ready, unless it holds a round."""
        self.connection += 1
        self.port += 1
        ready = None
        if held is None:
            ready = inputs.ReadyPort(self.clean if ready_round is None else ready_round, self.port)
        return self.bench.take(
            inputs.Hello(
                identity=self.identity,
                connection=self.connection,
                epoch=self.epoch,
                run=self.run,
                coordinator_id=self.coordinator_id if coordinator_id is None else coordinator_id,
                coordinator_durable=durable,
                acknowledged=self.sequence if acknowledged is None else acknowledged,
                revision=self.revision,
                held=held,
                ready=ready,
                draining=draining,
                known_addresses=self.known_addresses,
                is_proven=self._is_proven() if is_proven is None else is_proven,
            )
        )

    def _is_proven(self) -> bool:
        """Return whether its last Welcome, and so its token, is of this coordinator."""
        return self.coordinator_id == self.bench.state.coordinator_id

    def held_round(
        self,
        state: NodeState = NodeState.STARTED,
        exits: Sequence[WorkerExit] = (),
        start_failure: str = "",
    ) -> HeldRound:
        """Return the round that it last had to run, as a Hello carries it."""
        run = next(told for told in reversed(self.told) if isinstance(told, DesiredRun))
        return HeldRound(
            run.header,
            run.assignment,
            state,
            (4_000,),
            tuple(exits),
            start_failure,
        )

    def report(self, make: Callable[[inputs.Sender], inputs.Report]) -> Transition:
        """Send the next numbered report."""
        self.sequence += 1
        return self.bench.take(make(self.sender(self.sequence)))

    def reach(
        self, milestone: Milestone, ago_ms: int = 0, *, round: int | None = None
    ) -> Transition:
        """Report that all its workers have reached a milestone."""
        number = self.last_round if round is None else round
        return self.report(lambda sender: inputs.Reached(sender, number, ((milestone, ago_ms),)))

    def stand_still(self, for_ms: int, *, round: int | None = None) -> Transition:
        """Report that none of its workers has made progress for so long."""
        number = self.last_round if round is None else round
        return self.report(lambda sender: inputs.Progress(sender, number, for_ms))

    def move(self) -> Transition:
        """Report that its workers make progress again."""
        return self.report(lambda sender: inputs.Progress(sender, self.last_round, None))

    def heartbeat(self) -> Transition:
        """Send a heartbeat."""
        return self.bench.take(inputs.Heartbeat(self.sender()))

    def start(self) -> Transition:
        """Report that the workers of its round run."""
        self.started = self.last_round
        pids = tuple(range(4_000, 4_000 + self.identity.local_world_size))
        return self.report(lambda sender: inputs.Started(sender, self.last_round, pids))

    def fail(self, *exits: WorkerExit) -> Transition:
        """Report failed workers; by default local rank 0 with exit code 1."""
        return self.report(
            lambda sender: inputs.Exited(sender, self.last_round, exits or (worker_exit(),))
        )

    def record(self, *exits: WorkerExit) -> Transition:
        """Report running workers that have recorded an error."""
        return self.report(lambda sender: inputs.Recorded(sender, self.last_round, exits))

    def exit(self, *exits: WorkerExit) -> Transition:
        """Report workers that ended; by default local rank 0 with 0."""
        return self.fail(*(exits or (worker_exit(0),)))

    def succeed(self) -> Transition:
        """Report that every worker ended with 0."""
        return self.report(lambda sender: inputs.Succeeded(sender, self.last_round))

    def ready(self, round: int | None = None) -> Transition:
        """Report that nothing of `round` (default: all rounds that it held) runs here."""
        self.port += 1
        self.clean = self.last_round if round is None else round
        offer = inputs.ReadyPort(self.clean, self.port)
        return self.report(lambda sender: inputs.Ready(sender, offer))

    def fail_to_start(
        self, text: str = "no such file", *, is_permanent: bool = False
    ) -> Transition:
        """Report that a worker could not be started."""
        return self.report(
            lambda sender: inputs.StartFailed(sender, self.last_round, text, is_permanent)
        )

    def leave(self, text: str = "no such file") -> Transition:
        """Report that the node leaves its round."""
        return self.report(lambda sender: inputs.Leaving(sender, self.last_round, text))

    def block(self, text: str = "") -> Transition:
        """Report processes that survived SIGKILL, or what else keeps the node."""
        return self.report(lambda sender: inputs.Blocked(sender, self.last_round, (4_000,), text))

    def drain(self, time_ms: int, reason: str = "SIGTERM") -> Transition:
        """Report that the node wants to leave."""
        return self.report(lambda sender: inputs.Draining(sender, time_ms, reason))

    def goodbye(self, text: str = "") -> Transition:
        """Leave on purpose."""
        self.beats = False
        return self.report(lambda sender: inputs.Goodbye(sender, text))

    def break_off(self) -> Transition:
        """Let the stream of the present connection end."""
        return self.bench.take(inputs.Broken(self.sender()))

    def fall_silent(self) -> None:
        """Send no heartbeats from now on."""
        self.beats = False

    def receive(self, effect: Welcome | Send) -> None:
        """Receive an effect of the coordinator."""
        self.epoch = max(self.epoch, self.bench.state.epoch)
        self.coordinator_id = self.bench.state.coordinator_id
        if isinstance(effect, Welcome):
            self.run = effect.run
            return
        if effect.revision == self.revision:
            assert effect.desired == self.desired, "one revision, two states"
            return
        assert effect.revision > self.revision, "the revision went back"
        self.revision, self.desired = effect.revision, effect.desired
        self.told.append(effect.desired)
        if isinstance(effect.desired, DesiredRun):
            self.last_round = max(self.last_round, effect.desired.header.number)

    def obey(self) -> bool:
        """Carry out the desired state; return whether there was anything to do."""
        match self.desired:
            case DesiredRun(header=header) if self.started < header.number:
                self.start()
            case DesiredStop(round=number) if self.clean < number:
                self.last_round = max(self.last_round, number)
                self.ready()
            case _:
                return False
        return True


def finished(agent: FakeAgent) -> DesiredFinished:
    """Return the outcome that the agent received."""
    assert isinstance(agent.desired, DesiredFinished), agent.desired
    return agent.desired


def stopped_round(agent: FakeAgent) -> int:
    """Return the round that the agent has to stop."""
    assert isinstance(agent.desired, DesiredStop), agent.desired
    return agent.desired.round


def stop_reason(agent: FakeAgent) -> RoundReason:
    """Return the reason why the agent has to stop."""
    assert isinstance(agent.desired, DesiredStop), agent.desired
    return agent.desired.reason


def come_back(
    agent: FakeAgent,
    state: NodeState = NodeState.STARTED,
    exits: Sequence[WorkerExit] = (),
    acknowledged: int | None = None,
) -> None:
    """Let an agent say Hello with the round that it holds, or ready if it holds none.

    Args:
        agent: which was there before.
        state: of the round that it holds.
        exits: of its workers.
        acknowledged: its latest report of which it knows that it has arrived; None: all have.
    """
    holds = agent.last_round > agent.clean
    held = agent.held_round(state, exits) if holds else None
    assert agent.hello(held=held, acknowledged=acknowledged).refusal is None
    agent.beats = True
