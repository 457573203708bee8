"""One agent: the core, with the link and the supervisor around it, in one event loop.

Inputs are posted from wherever they happen and taken one after the other; what the core wants done
is done at once, since nothing that the agent does blocks.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rallypoint.agent.address import PortReserver
from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import (
    STOPPING_STAGES,
    AgentState,
    GoodbyeKind,
    Held,
    Report,
)
from rallypoint.agent.core.step import next_deadline_ms, step
from rallypoint.agent.environ import Launch
from rallypoint.agent.events import EventLog
from rallypoint.agent.last_round import LastRound, last_round
from rallypoint.agent.link import FAREWELL_S_MAX, USAGE_EXIT_CODE, Link
from rallypoint.agent.output.console import Consoles
from rallypoint.agent.output.destinations import OutputSpec
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.output.plugin import LogsPlugin, PluginSpec
from rallypoint.agent.process import WorkerHost, become_subreaper
from rallypoint.agent.supervisor import Supervisor
from rallypoint.agent.timers import TimerFileRefused
from rallypoint.agent.translate import fill_snapshot, parse_desired, parse_notices
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.log import get_logger

log = get_logger()

PROTOCOL_VERSION = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """How an agent is started."""

    coordinator: str
    """host:port"""
    job_id: str
    spec: job_pb2.JobSpec
    workers: int
    role: str
    node_name: str
    node_name_explicit: bool
    node_rank: int | None
    address: str
    host_name: str
    """For people who read a report."""
    labels: dict[str, str]
    launch_id: str
    launch: Launch
    output: OutputSpec
    logs_plugin: PluginSpec | None
    """Says where output goes; None: `output` does."""
    grace_ms: int
    drain_ms: int
    """How long workers may go on after a SIGTERM to the agent."""
    drain_signal: int
    coordinator_timeout_ms: int
    fence_ms: int
    """How long workers may live without a confirmed heartbeat; 0: for ever."""
    signals: tuple[signal.Signals, ...]
    """What the agent handles, for its workers; every other signal acts as it does by itself."""
    incarnation: str
    """32 hexadecimal digits, drawn once per process."""
    environment: dict[str, str]
    """What workers inherit: the agent's own, as it was started, with its mark."""


@dataclass(slots=True)
class Listener:
    """What the agent tells the person who started it; nothing here may block for long."""

    finished: Callable[[agent_pb2.Finished, LastRound], None]
    """How the run has ended, and what became of the workers here."""
    waiting: Callable[[job_pb2.Waiting], None]
    disconnected: Callable[[str, float], None]
    """Why, and for how many seconds the agent goes on trying."""
    events: EventLog | None = None
    """Records what torch's agent would; None when nobody wants to know."""


@dataclass(slots=True)
class Agent:
    """The shell of an agent's core."""

    settings: Settings
    listener: Listener
    consoles: Consoles
    state: AgentState
    node_name: str
    ports: PortReserver
    run_number: int = 0
    coordinator_id: str = ""
    coordinator_durable: bool = False
    exit_code: int | None = None
    exit_text: str = ""
    link: Link = field(init=False)
    supervisor: Supervisor = field(init=False)
    _pending: deque[inputs.Input] = field(default_factory=deque)
    _is_stepping: bool = False
    _timer: asyncio.TimerHandle | None = None
    _done: asyncio.Event = field(default_factory=asyncio.Event)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nothing is left to report, or nobody is there to report it to."""
    _told_away: bool = False
    _reached: str = ""
    """What is still to be logged of the last Welcome."""
    _is_spare: bool = False
    _last_held: Held | None = None
    """The last round that was held, as it was last."""
    _told_notices: set[tuple[str, str]] = field(default_factory=set)

    # --- the owner's loop ---

    def now_ms(self) -> int:
        """Return the agent's clock."""
        return time.monotonic_ns() // 1_000_000

    def post(self, said: inputs.Input) -> None:
        """Take an input; one that comes while another is taken waits its turn."""
        self._pending.append(said)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._pending:
                self.state, effects = step(self.state, self._pending.popleft(), self.now_ms())
                for effect in effects:
                    self._do(effect)
                self._remember_held()
        finally:
            self._is_stepping = False
        if self.state.reports and self.state.away_since_ms is None:
            self._quiet.clear()
        else:
            self._quiet.set()
        self._set_timer()

    def _remember_held(self) -> None:
        if self.state.held is not None:
            self._last_held = self.state.held
        if self.listener.events is not None:
            self.listener.events.saw(self.state.held)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = next_deadline_ms(self.state)
        if due_ms is not None:
            delay_s = max(0.0, (due_ms - self.now_ms()) / 1000 + 0.001)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self.post, inputs.TimePassed())

    def _do(self, effect: inputs.Effect) -> None:  # noqa: C901  # one flat case per effect
        match effect:
            case inputs.StartWorkers(order=order):
                self.supervisor.start(order)
                self._tell_reached()
                log.info(
                    "round_began",
                    round=order.number,
                    ranks=f"{order.first_rank}-{order.first_rank + order.local_world_size - 1}",
                    world_size=order.world_size,
                    restarts=f"{order.restart_count} of {order.max_restarts}",
                )
            case inputs.SignalWorkers(signum=signum):
                self.supervisor.signal(signum)
            case inputs.ForwardSignal(signum=signum, round=number):
                self._forward(signal.Signals(signum).name, signum, number)
            case inputs.TellWorkers(round=number, notices=notices):
                self.supervisor.tell(number, notices, self.node_name)
            case inputs.Sweep(token=token):
                self.supervisor.sweep(token)
            case inputs.ArmFence(at_ms=at_ms):
                self.supervisor.arm_fence(at_ms)
            case inputs.FenceFell(round=number, silent_ms=silent_ms):
                log.warning("fence_fell", round=number, silent_ms=silent_ms)
            case inputs.ReservePort():
                self.post(inputs.PortReserved(self.ports.reserve()))
            case inputs.SendReports():
                self.link.wake()
            case inputs.Exit(code=code, text=text):
                self.exit_code, self.exit_text = code, text
                self._done.set()

    def _forward(self, name: str, signum: int, number: int | None) -> None:
        if number is None:
            log.info("signal_unheard", signal=name, why="no workers run that could be told")
            return
        self.supervisor.forward(signum)
        log.info("signal_forwarded", signal=name, round=number)

    # --- what the link asks and says ---

    def hello(self) -> agent_pb2.Hello:
        """Return a Hello with everything that the node holds now."""
        settings = self.settings
        hello = agent_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            launch_id=settings.launch_id,
            job_id=settings.job_id,
            spec=settings.spec,
            node_name=self.node_name,
            node_name_explicit=settings.node_name_explicit,
            address=settings.address,
            host_name=settings.host_name,
            local_world_size=settings.workers,
            role=settings.role,
            labels=settings.labels,
            node_rank=settings.node_rank,
            run=self.run_number,
            coordinator_id=self.coordinator_id,
            coordinator_durable=self.coordinator_durable,
        )
        fill_snapshot(hello, self.state, self.now_ms())
        return hello

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        """Return the sequence of the first unacknowledged report, and all of them."""
        return self.state.acknowledged + 1, self.state.reports

    def epoch(self) -> int:
        """Return the highest epoch heard so far."""
        return self.state.epoch

    def confirmed(self, sent_ms: int) -> None:
        """Note that the coordinator has heard what was sent at this time."""
        self.post(inputs.Confirmed(sent_ms))

    def came(self, message: agent_pb2.SessionResponse) -> None:
        """Take a message of the coordinator."""
        kind = message.WhichOneof("message")
        if message.acknowledged:
            self.post(inputs.Acknowledged(message.acknowledged))
        if kind == "welcome":
            self._welcomed(message)
        elif kind == "desired":
            self._desired(message.epoch, message.desired)
        elif kind == "acknowledgement" and message.acknowledgement.HasField("waiting"):
            self.listener.waiting(message.acknowledgement.waiting)
        elif kind == "notices":
            self._noticed(message.notices)

    def _welcomed(self, message: agent_pb2.SessionResponse) -> None:
        welcome = message.welcome
        event = "coordinator_reached_again" if self.coordinator_id else "coordinator_reached"
        self.coordinator_id = welcome.coordinator_id
        self.coordinator_durable = welcome.coordinator_durable
        self.node_name = welcome.node_name
        self.run_number = welcome.run
        self._told_away = False
        self._reached = event
        self.post(inputs.Welcomed(message.epoch))
        if welcome.HasField("desired"):
            self._desired(message.epoch, welcome.desired)
        self._tell_reached()
        if welcome.HasField("notices") or self.state.notices:
            self._noticed(welcome.notices)

    def _tell_reached(self) -> None:
        """Log a Welcome once: before what followed from it, but after workers were started, since
        the first line costs the import of a library."""
        if self._reached:
            log.info(
                self._reached,
                coordinator=self.settings.coordinator,
                node=self.node_name,
                job=self.settings.job_id,
            )
            self._reached = ""

    def _noticed(self, message: agent_pb2.Notices) -> None:
        notices = parse_notices(message, self.node_name, self.now_ms())
        for notice in notices:
            if (notice.kind, notice.node) not in self._told_notices:
                left_s = round((notice.until_ms - self.now_ms()) / 1000, 1)
                log.info(
                    f"{notice.kind}_announced",
                    **({"node": notice.node, "why": notice.reason} if notice.node else {}),
                    then="this node leaves once its workers are done"
                    if notice.is_here
                    else "the round is stopped and formed anew",
                    at_most_s=left_s,
                )
        self._told_notices = {(notice.kind, notice.node) for notice in notices}
        self.post(inputs.NoticesCame(notices))

    def _desired(self, epoch: int, message: agent_pb2.DesiredState) -> None:
        desired = parse_desired(message)
        if desired is None:
            log.error("desired_state_unknown", then="install matching versions of rallypoint")
            return
        which, before = message.WhichOneof("state"), self.state
        if which == "finished" and before.ending is None:
            here = last_round(
                self.node_name, self.settings.host_name, self._last_held, self.now_ms()
            )
            self.listener.finished(message.finished, here)
        # The workers of a thousand nodes wait for this: what is said about it comes after it.
        self.post(inputs.DesiredCame(epoch, message.revision, desired))
        if which == "stop" and before.held is not None:
            log.info("round_stopped", round=message.stop.round, why=message.stop.text)
        was_spare, self._is_spare = self._is_spare, which == "standby" and message.standby.spare
        if self._is_spare and not was_spare:
            why = f"the running round of job {self.settings.job_id} has no place for this node"
            log.info("became_spare", why=why)

    def disconnected(self, why: str) -> None:
        """Note that there is no session, and say so once."""
        self.post(inputs.Disconnected())
        if not self._told_away and self.state.ending is None:
            self._told_away = True
            self.listener.disconnected(why, self.settings.coordinator_timeout_ms / 1000)

    def dismissed(self, exit_code: int, text: str) -> None:
        """Note that the coordinator refuses this agent for good."""
        self.post(inputs.Dismissed(exit_code, text))

    # --- life ---

    def variables(self) -> tuple[tuple[str, str], ...]:
        """Return the RALLYPOINT_ variables that a round starts with."""
        return (
            ("RALLYPOINT_COORDINATOR", self.settings.coordinator),
            ("RALLYPOINT_JOB_ID", self.settings.job_id),
            ("RALLYPOINT_NODE", self.node_name),
        )

    def is_wanted(self, number: int) -> bool:
        """Return whether the workers of this round are to start or to go on."""
        held = self.state.held
        return (
            held is not None and held.order.number == number and held.stage not in STOPPING_STAGES
        )

    async def live(self, host: WorkerHost) -> int:
        """Take part in the job until it ends; return the exit code."""
        loop = asyncio.get_running_loop()
        become_subreaper()
        async with asyncio.TaskGroup() as tasks:
            settings = self.settings
            self.link = Link(settings.coordinator, settings.incarnation, self)
            self.supervisor = Supervisor(
                host=host,
                launch=settings.launch,
                job_id=settings.job_id,
                environment=settings.environment,
                variables=self.variables,
                post=self.post,
                tasks=tasks,
                outputs=WorkerOutputs(
                    settings.output,
                    self.consoles,
                    LogFolder(settings.output.log_dir, settings.job_id),
                    node_name=lambda: self.node_name,
                ),
                plugin=self._new_plugin(),
                is_wanted=self.is_wanted,
            )
            # Before anything that has to be removed again is made.
            for signum in settings.signals:
                loop.add_signal_handler(signum, self.post, inputs.SignalReceived(signum))
            if self.supervisor.plugin is not None:
                await self.supervisor.plugin.begin()
            try:
                self.supervisor.attach()
            except TimerFileRefused as error:
                self.dismissed(USAGE_EXIT_CODE, str(error))
            self.post(inputs.PortReserved(self.ports.reserve()))
            linked = tasks.create_task(self.link.run())
            try:
                await self._done.wait()
                self._record_end()
                await self._let_reports_out()
            finally:
                linked.cancel()
                if self._timer is not None:
                    self._timer.cancel()
                await self.supervisor.close()
                self.ports.close()
        assert self.exit_code is not None
        return self.exit_code

    def _record_end(self) -> None:
        events, ending = self.listener.events, self.state.ending
        if events is not None and ending is not None:
            is_orderly = ending.kind is GoodbyeKind.FINISHED or ending.exit_code == 0
            events.ended(is_orderly=is_orderly, text=ending.text)

    def _new_plugin(self) -> LogsPlugin | None:
        spec = self.settings.logs_plugin
        return None if spec is None else LogsPlugin(spec, self.settings.environment)

    async def _let_reports_out(self) -> None:
        """Wait until the last report was acknowledged, if there is anybody to do so."""
        try:
            async with asyncio.timeout(FAREWELL_S_MAX):
                await self._quiet.wait()
        except TimeoutError:
            log.info("farewell_not_acknowledged")


def new_agent(
    settings: Settings,
    listener: Listener,
    consoles: Consoles,
    ports: PortReserver,
    now_ms: int,
) -> Agent:
    """Return an agent that has not begun yet; it gives the ports back when its life ends."""
    state = AgentState(
        workers=settings.workers,
        grace_ms=settings.grace_ms,
        drain_ms=settings.drain_ms,
        drain_signal=settings.drain_signal,
        coordinator_timeout_ms=settings.coordinator_timeout_ms,
        fence_ms=settings.fence_ms,
        away_since_ms=now_ms,
    )
    return Agent(settings, listener, consoles, state, settings.node_name, ports)
