"""A node: a host, the agents that live on it one after the other, and their processes.

`Agent` is the shell around the agent's real core, as `agent.py` is: it posts inputs one after
the other and carries out effects at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, assert_never

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core import step as core
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.session.dismissal import Dismissed
from rallypoint.agent.session.link import FAREWELL_S_MAX
from rallypoint.agent.session.translate import fill_snapshot, parse_desired, parse_notices
from rallypoint.server.core.model.ids import NodeName, SessionId
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from sim.seeds.scenario import NodePlan
from sim.world.clock import Timer
from sim.world.process import Process
from sim.world.processes import SIGUSR1, Workers
from sim.world.wire import add_addresses, outcome_of, settings_of

if TYPE_CHECKING:
    from sim.world.world import World

FAREWELL_MS_MAX = int(FAREWELL_S_MAX * 1000)
FIRST_PORT = 20_000


@dataclass(slots=True, eq=False)
class Host:
    """One machine."""

    name: str
    plan: NodePlan
    agent: Agent | None = None
    """The latest agent here; it may be gone."""
    processes: list[Process] = field(default_factory=list)
    """Worker processes that live here, of any agent."""
    unreachable_until_ms: int = 0
    """Until then, no message passes between it and the coordinator."""
    disturbed_ms: int = 0
    """When something last went wrong here."""
    next_port: int = FIRST_PORT
    is_stranger: bool = False
    """It is started by mistake, with flags that are not its job's."""

    @property
    def has_agent(self) -> bool:
        """True while an agent lives here."""
        return self.agent is not None and not self.agent.is_gone


class Agent:
    """One agent process."""

    def __init__(self, world: World, host: Host, incarnation: int, spec: JobSpec) -> None:
        self.world = world
        self.host = host
        self.spec = spec
        self.session = SessionId(f"{incarnation:032x}")
        self.settings = settings_of(host.plan, spec, self.session)
        self.name = NodeName(host.plan.name)
        self.run = 0
        self.coordinator_id = ""
        self.coordinator_durable = False
        self.state = AgentState(
            workers=host.plan.workers,
            shutdown_timeout_ms=spec.shutdown_timeout_ms,
            drain_ms=host.plan.drain_ms,
            drain_signal=SIGUSR1,
            coordinator_timeout_ms=host.plan.coordinator_timeout_ms,
            fence_ms=spec.fence_after_ms,
            away_since_ms=world.clock.now_ms,
        )
        self.is_gone = False
        """The process is dead, or has exited."""
        self.exit_code: int | None = None
        """Set when it exits by itself."""
        self.exit_due: int | None = None
        """Its exit code, once its last reports are sent."""
        self.outcome: Outcome | None = None
        """The first outcome that it received, unless it was leaving already."""
        self.was_terminated = False
        """It got SIGTERM."""
        self.dismissal: Dismissed | None = None
        """How a coordinator refused it for good, if one did."""
        self.frozen_until_ms = 0
        self.link = world.new_link(self)
        self.workers = Workers(self)
        self._pending: deque[inputs.Input] = deque()
        self._is_stepping = False
        self._backlog: deque[Callable[[], None]] = deque()
        self._timer: Timer | None = None

    @property
    def is_attached(self) -> bool:
        """True while messages pass both ways between it and the present coordinator."""
        stream, now_ms = self.link.stream, self.world.clock.now_ms
        server = self.world.server_of(self.host.plan.job_id)
        if self.is_gone or stream is None or server is None or not self.link.is_welcome:
            return False
        is_still = max(self.frozen_until_ms, self.host.unreachable_until_ms) > now_ms
        is_its = stream.server is server if stream.member else stream.boot == server.boot
        is_open = is_its and not stream.is_cut and not stream.server_done
        return is_open and not is_still

    @property
    def was_asked(self) -> bool:
        """True once an operator has drained a node of this name."""
        return (self.host.plan.job_id, self.name) in self.world.drained

    def now_ms(self) -> int:
        """Return the agent's clock."""
        return self.world.clock.now_ms

    # --- events of the process ---

    def take(self, call: Callable[[], None]) -> None:
        """Call it in the process: never if the process is gone, later if it is frozen."""
        if self.is_gone:
            return
        if self.frozen_until_ms > self.world.clock.now_ms or self._backlog:
            self._backlog.append(call)
        else:
            call()

    def freeze(self, duration_ms: int) -> None:
        """Stop the process for a while; its workers run on."""
        self.frozen_until_ms = self.world.clock.now_ms + duration_ms
        self.world.clock.at(self.frozen_until_ms, self._thaw)

    def _thaw(self) -> None:
        if self.frozen_until_ms > self.world.clock.now_ms:
            return
        while self._backlog and not self.is_gone:
            self._backlog.popleft()()

    def begin(self) -> None:
        """Start, as `life.live` does."""
        self._reserve_port()
        self.link.attempt()

    def die(self) -> None:
        """Kill the process, and with it everything that it started."""
        self.is_gone = True
        self.workers.kill_all()

    # --- the loop ---

    def post(self, input: inputs.Input) -> None:
        """Apply an input; one that arrives while another is applied waits its turn."""
        self._pending.append(input)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._pending and not self.is_gone:
            self._step(self._pending.popleft())
        self._is_stepping = False
        if self.is_gone:
            return
        self._set_timer()
        if self.exit_due is not None and self._is_quiet():
            self._exit()

    def _step(self, input: inputs.Input) -> None:
        before = self.state
        self.state, effects = core.step(before, input, self.world.clock.now_ms)
        self.world.coverage.agent_stepped(before, input, self.state)
        self.world.safety.agent_stepped(self, before, self.state)
        for effect in effects:
            self._do(effect)

    def _is_quiet(self) -> bool:
        return not self.state.reports or self.state.away_since_ms is not None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due_ms = core.next_deadline_ms(self.state)
        if due_ms is not None:
            expired = partial(self.take, partial(self.post, inputs.TimePassed()))
            self._timer = self.world.clock.at(due_ms + 1, expired)

    def _do(self, effect: effects.Effect) -> None:  # noqa: C901  # one flat case per effect
        match effect:
            case effects.StartWorkers(order=order):
                self.world.note("start", self.host.name, order.number, order.header.epoch)
                self.world.safety.order_received(self, order)
                self.workers.start(order)
            case effects.SignalWorkers(signum=signum):
                self.workers.signal(signum)
            case effects.ForwardSignal():
                self.world.note("forwarded", self.host.name, effect.signum, effect.round)
            case effects.WriteNotices(round=number, notices=notices):
                self.world.note("notices", self.host.name, number, notices)
            case effects.Sweep(token=token):
                self.workers.sweep(token)
            case effects.LogSurvivors(within_ms=within_ms):
                self.world.note("survivors", self.host.name, within_ms)
            case effects.ArmFence(at_ms=at_ms):
                self.workers.arm_fence(at_ms)
            case effects.LogFence():
                self.world.note("fence enforced", self.host.name)
                self.world.disturb_host(self.host)
                self.world.coverage.counts["event", "fence_enforced"] += 1
            case effects.LogDropped():
                raise AssertionError(f"{self.host.name} drops {effect}")
            case effects.LogOutcomeAwaited(within_ms=within_ms):
                self.world.note("outcome awaited", self.host.name, within_ms)
            case effects.ReservePort():
                self._reserve_port()
            case effects.SendReports():
                self.link.wake()
            case effects.Exit(code=code, text=text):
                self.world.note("leaves", self.host.name, code, text)
                self.exit_due = code
                self.world.clock.after(FAREWELL_MS_MAX, partial(self.take, self._exit))
            case _:
                assert_never(effect)

    def _reserve_port(self) -> None:
        self.host.next_port = FIRST_PORT + (self.host.next_port + 1 - FIRST_PORT) % 40_000
        self.post(inputs.PortReserved(self.host.next_port))

    def _exit(self) -> None:
        if self.is_gone:
            return
        self.exit_code = self.exit_due
        self.is_gone = True
        self.link.close()
        self.world.safety.exited(self)
        self.workers.kill_all()
        self.world.agent_gone(self)

    # --- the link's user, as in `agent.py` ---

    def hello(self) -> agent_pb2.Hello:
        """Return a Hello with everything that the node holds now."""
        hello = self.settings.hello(
            address=self.settings.address,
            node_name=self.name,
            run=self.run,
            coordinator_id=self.coordinator_id,
            coordinator_durable=self.coordinator_durable,
        )
        add_addresses(hello, self.host.plan)
        fill_snapshot(hello, self.state, self.world.clock.now_ms)
        return hello

    def on_message(self, message: agent_pb2.SessionResponse) -> None:
        """Apply a message of the coordinator."""
        if message.acknowledged:
            self.post(inputs.Acknowledged(message.acknowledged))
        match message.WhichOneof("message"):
            case _ if self.is_gone:
                pass  # that was its Goodbye; the message may hold an outcome too
            case "welcome":
                self._on_welcome(message)
            case "desired":
                self._on_desired(message.epoch, message.desired)
            case "notices":
                self._on_notices(message.notices)

    def _on_welcome(self, message: agent_pb2.SessionResponse) -> None:
        welcome = message.welcome
        self.coordinator_id = welcome.coordinator_id
        self.coordinator_durable = welcome.coordinator_durable
        self.name, self.run = NodeName(welcome.node_name), welcome.run
        self.post(inputs.Welcomed(message.epoch))
        if welcome.HasField("desired"):
            self._on_desired(message.epoch, welcome.desired)
        if welcome.HasField("notices") or self.state.notices:
            self._on_notices(welcome.notices)

    def _on_desired(self, epoch: int, message: agent_pb2.DesiredState) -> None:
        if self.is_gone:
            return
        received = parse_desired(epoch, message, self.now_ms())
        assert received is not None
        self.world.safety.desired_received(self, received.desired)
        if message.HasField("finished"):
            self.world.safety.outcome_received(self, message.finished)
            if self.outcome is None and self.state.ending is None:
                self.outcome = outcome_of(message.finished)
        self.post(received)

    def _on_notices(self, message: agent_pb2.Notices) -> None:
        notices = parse_notices(message, self.now_ms())
        self.post(inputs.NoticesReceived(notices))

    def on_dismissed(self, dismissed: Dismissed) -> None:
        """Note that the coordinator refuses this agent for good."""
        self.dismissal = dismissed
        self.post(inputs.Dismissed(dismissed.exit_code, dismissed.text))
