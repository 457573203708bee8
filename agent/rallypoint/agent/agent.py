"""The shell of an agent's core: it owns the state, posts inputs and carries out effects.

Everything happens in one event loop. Inputs are queued and applied one by one; the effects of one
are carried out before the next is applied.

An exception anywhere in the agent is a bug. `fail` logs it once, with its traceback, and lets the
core end the agent: its workers are stopped, the session learns of it, and the exit code is 70. What
else the failed input, effect or callback would have done is lost; everything queued behind it still
happens. A core that cannot even end is left out (`has_lost_core`), and a timer bounds the whole.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVarTuple

from rallypoint.agent.containment import describe_error
from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import Notice
from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.core.leaving.away import find_absence
from rallypoint.agent.core.reports import GoodbyeKind, Report
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from rallypoint.agent.machine.address import (
    find_local_address,
    find_loopback,
    is_of_this_host,
)
from rallypoint.agent.machine.interfaces import find_addresses
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS, Workers
from rallypoint.agent.session.evidence import EvidenceReports
from rallypoint.agent.session.link import FAREWELL_S_MAX, Link
from rallypoint.agent.session.session_log import SessionLog
from rallypoint.agent.session.translate import (
    fill_snapshot,
    find_misfit,
    parse_desired,
    parse_notices,
)
from rallypoint.agent.settings import AgentCallbacks, Settings
from rallypoint.agent.torchelastic.last_round import last_round
from rallypoint.base import worker_variables
from rallypoint.base.addresses import first_host, is_loopback
from rallypoint.base.exit_codes import EXIT_SOFTWARE
from rallypoint.base.log import get_logger
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import evidence_pb2

log = get_logger()

_Args = TypeVarTuple("_Args")

FAILURES_LOGGED_MAX = 10
"""Exceptions after the first that are logged: a bug in a timer may repeat for as long as we end."""
COORDINATOR_ADDRESSES_MAX = 16
"""Of the coordinator's host, in a Hello."""
ADDRESSES_MAX = 64
"""Of this host, in a Hello."""
END_MARGIN_S = 5.0
"""How much longer than shutdown timeout and sweep the end after a bug may take."""


class Agent:
    """One agent. `life.take_part` gives it its workers."""

    supervisor: Workers

    def __init__(
        self, settings: Settings, callbacks: AgentCallbacks, ports: PortReserver, now_ms: int
    ) -> None:
        """Begin at `now_ms` without a session; `live` runs the agent and finally closes `ports`."""
        self.settings = settings
        self.link = Link(
            *(settings.coordinator, settings.incarnation, self, settings.access, settings.keeper)
        )
        self._evidence = EvidenceReports(
            *(settings.incarnation, settings.job_id, self._collect, self.link.report_evidence)
        )
        self.callbacks = callbacks
        self.ports = ports
        self.state = AgentState(
            workers=settings.workers,
            shutdown_timeout_ms=settings.shutdown_timeout_ms,
            drain_ms=settings.drain_ms,
            drain_signal=settings.drain_signal,
            coordinator_timeout_ms=settings.coordinator_timeout_ms,
            outcome_timeout_ms=settings.outcome_timeout_ms,
            fence_ms=settings.fence_ms,
            away_since_ms=now_ms,
        )
        self.log = SessionLog(
            *(settings.coordinator, settings.job_id, settings.node_name),
            is_standalone=settings.is_standalone,
            limits_threads=settings.limits_threads,
            patient_until_ms=now_ms + settings.patience_ms,
        )
        self.address = settings.address
        """At which other nodes reach this one; empty: not known before the first Hello."""
        self.run_number = 0
        self.coordinator_id = ""
        self.coordinator_durable = False
        self.exit_code: int | None = None
        """Set when the agent is done."""
        self.exit_text = ""
        self.is_dismissed = False
        self.done = asyncio.Event()
        """Set when the core wants the agent to exit."""
        self.has_port = asyncio.Event()
        """Set once a port was reserved: no node can join without one."""
        self.reported = asyncio.Event()
        """Set while every report is acknowledged, or there is no session."""
        self._pending: deque[inputs.Input] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._failure = ""
        """The first exception, as one line."""
        self._backstop: asyncio.TimerHandle | None = None
        """Ends the agent when the end after a bug takes too long."""
        self.has_lost_core = False
        """The core raised when it was asked to end; the workers were not stopped yet."""
        self._last_held: HeldRound | None = None
        """The last round that was held, in its last state."""

    @property
    def coordinators(self) -> str:
        """Return host:port of all coordinators that are known, the one that serves first."""
        return self.link.targets

    # --- the loop ---

    def now_ms(self) -> int:
        """Return the agent's clock."""
        return time.monotonic_ns() // 1_000_000

    @property
    def node_name(self) -> str:
        """The node's name, as the coordinator knows it."""
        return self.log.node_name

    def post(self, input: inputs.Input) -> None:
        """Apply an input; an input posted meanwhile waits."""
        self._pending.append(input)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._pending:
            input = self._pending.popleft()
            if not self._guard(self._step, input) and isinstance(input, inputs.AgentFailed):
                self._end_without_core()
        self._is_stepping = False
        if self.state.reports and self.state.away_since_ms is None:
            self.reported.clear()
        else:
            self.reported.set()
        if self.state.port:
            self.has_port.set()
        self._guard(self._set_timer)

    def _step(self, input: inputs.Input) -> None:
        before = self.state.held
        self.state, todo = step(self.state, input, self.now_ms())
        if before is not None and self.state.held is not None:
            self.log.progress(before, self.state.held, self.now_ms())
        for effect in todo:
            self._guard(self._do, effect)
        self._remember_held()

    def _guard(self, call: Callable[[*_Args], None], *args: *_Args) -> bool:
        """Call it; return whether that succeeds. An exception ends the agent, not the caller."""
        try:
            call(*args)
        except Exception as error:  # noqa: BLE001  # the root of every input and message
            self.fail(error)
            return False
        return True

    async def say_goodbye(self) -> None:
        """Record the end, and wait until the last report is acknowledged, if there is a session."""
        events, ending = self.callbacks.events, self.state.ending
        if events is not None and ending is not None:
            is_orderly = ending.kind is GoodbyeKind.FINISHED or ending.exit_code == 0
            events.ended(is_orderly=is_orderly, text=ending.text)
        try:
            async with asyncio.timeout(FAREWELL_S_MAX):
                await self.reported.wait()
        except TimeoutError:
            log.info("farewell_not_acknowledged")

    # --- bugs ---

    def fail(self, error: BaseException) -> None:
        """End the agent in an orderly way, because of a bug in it.

        Safe to call at any time, and more than once; only the first call begins the end.
        """
        self._failures += 1
        if self._failures > 1 + FAILURES_LOGGED_MAX:
            return
        text, is_first = describe_error(error), not self._failure
        self._failure = self._failure or text
        try:
            if is_first:
                then = f"the agent stops its workers and exits {EXIT_SOFTWARE}"
                then = "the agent is ending" if self.done.is_set() else then
                log.error("agent_failed", error=text, then=then, exc_info=error)
            else:
                log.error("agent_failed_again", error=text, exc_info=error)
        except Exception:  # noqa: BLE001  # the log is what failed: the traceback must not be lost
            traceback.print_exception(error, file=sys.stderr)
        if is_first and not self.done.is_set():
            grace_s = (self.settings.shutdown_timeout_ms + SWEEP_LIMIT_MS) / 1000
            loop = asyncio.get_running_loop()
            self._backstop = loop.call_later(grace_s + END_MARGIN_S, self._end_without_core)
            self.post(inputs.AgentFailed(text))

    def _end_without_core(self) -> None:
        """End although the core does not: `live` stops the workers."""
        if self.exit_code is None:
            self.exit_code, self.exit_text = EXIT_SOFTWARE, f"internal error: {self._failure}"
            self.has_lost_core = True
        self.done.set()

    def stop_timers(self) -> None:
        """Cancel all timers."""
        if self._backstop is not None:
            self._backstop.cancel()
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remember_held(self) -> None:
        if self.state.held is not None:
            self._last_held = self.state.held
        if self.callbacks.events is not None:
            self.callbacks.events.saw(self.state.held)
        if self.callbacks.stepped is not None:
            self.callbacks.stepped()

    def _set_timer(self) -> None:
        self._stop_timer()
        due_ms = next_deadline_ms(self.state)
        if due_ms is not None:
            delay_s = max(0.0, (due_ms - self.now_ms()) / 1000 + 0.001)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay_s, self.post, inputs.TimePassed())

    def _do(self, effect: effects.Effect) -> None:  # noqa: C901  # one flat case per effect
        match effect:
            case effects.StartWorkers(order=order):
                self.supervisor.start(order)
            case effects.SignalWorkers(signum=signum):
                self.supervisor.signal(signum)
            case effects.ForwardSignal(signum=signum, round=number):
                self._forward(signal.Signals(signum).name, signum, number)
            case effects.WriteNotices(round=number, notices=notices):
                self.supervisor.tell(number, notices, self.node_name)
            case effects.Sweep(token=token):
                self.supervisor.sweep(token)
            case effects.LogSurvivors(within_ms=within_ms):
                self.supervisor.tasks.create_task(self.supervisor.log_survivors(within_ms / 1000))
            case effects.ArmFence(at_ms=at_ms):
                self.supervisor.arm_fence(at_ms)
            case effects.LogFence(round=number, unconfirmed_ms=unconfirmed_ms):
                log.warning("fence_enforced", round=number, unconfirmed_ms=unconfirmed_ms)
            case effects.LogDropped(round=number, local_rank=local_rank, what=what):
                why = "the node no longer holds its round"
                log.warning(
                    "worker_news_dropped", round=number, local_rank=local_rank, what=what, why=why
                )
            case effects.LogOutcomeAwaited(within_ms=within_ms):
                log.warning(
                    "outcome_awaited",
                    why="all workers here exited with 0, and no coordinator answers",
                    within_s=round(within_ms / 1000, 1),
                )
            case effects.ReservePort(checks_files=True):
                self.supervisor.tasks.create_task(self._check_files())
            case effects.ReservePort():
                self.reserve_port()
            case effects.SendReports():
                self.link.wake()
            case effects.Exit(code=code, text=text):
                self.exit_code, self.exit_text = code, text
                self.done.set()

    async def _check_files(self) -> None:
        """Reserve a port, if the files of a round can be made again."""
        try:
            await self.supervisor.check_files(self.settings.workers)
        except OSError as error:
            self.post(inputs.PortNotReserved(str(error)))
        else:
            self.reserve_port()

    def reserve_port(self) -> None:
        """Reserve the port of the next round; log when that starts to fail, and why."""
        try:
            port = self.ports.reserve()
        except OSError as error:
            text = error.strerror or str(error)
            if self.state.port_wait is None or self.state.port_wait.text != text:
                log.warning("port_not_reserved", why=text, then="the node retries until it has one")
            self.post(inputs.PortNotReserved(text))
        else:
            if self.state.unprepared:
                log.info("files_made_again", then="the node is ready")
            self.post(inputs.PortReserved(port))

    def _forward(self, name: str, signum: int, number: int | None) -> None:
        if number is None:
            log.info("signal_not_forwarded", signal=name, why="no workers run")
            return
        self.supervisor.forward(signum)
        log.info("signal_forwarded", signal=name, round=number)

    def is_wanted(self, number: int) -> bool:
        """Return whether the workers of this round have to start or keep running."""
        held = self.state.held
        return held is not None and held.number == number and not held.is_stopping

    def variables(self) -> tuple[tuple[str, str], ...]:
        """Return the RALLYPOINT_ variables that a round starts with."""
        return (
            (worker_variables.COORDINATOR, self.coordinators),
            (worker_variables.JOB_ID, self.settings.job_id),
            (worker_variables.NODE, self.node_name),
            *self.settings.access_variables(),
        )

    # --- the link's user ---

    def hello(self) -> agent_pb2.Hello:
        """Return a Hello with everything that the node holds now."""
        # By now the coordinator's name has an address. Workers keep the one that they were given.
        self.address = self.address or self._find_address()
        hello = self.settings.hello(
            address=self.address,
            node_name=self.node_name,
            run=self.run_number,
            coordinator_id=self.coordinator_id,
            coordinator_durable=self.coordinator_durable,
        )
        self._add_addresses(hello)
        fill_snapshot(hello, self.state, self.now_ms())
        return hello

    def _add_addresses(self, hello: agent_pb2.Hello) -> None:
        """Add what is known of the coordinator's host, which may be this one."""
        addresses = self.link.addresses
        if not any(is_loopback(one) or is_of_this_host(one) for one in addresses):
            hello.coordinator_addresses.extend(addresses[:COORDINATOR_ADDRESSES_MAX])
            return
        # An address that the operator has chosen stays, and needs no line.
        others: list[str] = []
        with suppress(OSError):  # too many open files: one is enough
            others = [] if self.settings.address else find_addresses()
        hello.host_addresses.extend(list(dict.fromkeys((self.address, *others)))[:ADDRESSES_MAX])
        self.log.found_address = "" if self.settings.address else self.address

    def _find_address(self) -> str:
        """Return the address at which other nodes reach this one."""
        host = first_host(self.link.target)
        is_own = self.settings.is_standalone or self.settings.keeper is not None
        # A job that brings its coordinator, at a loopback address, has all its nodes on this host.
        if is_own and is_loopback(host):
            return find_loopback() if host == "localhost" else host
        return find_local_address(host)

    def unacknowledged(self) -> tuple[int, tuple[Report, ...]]:
        """Return the sequence of the first unacknowledged report, and all of them."""
        return self.state.acknowledged + 1, self.state.reports

    def epoch(self) -> int:
        """Return the highest epoch seen so far."""
        return self.state.epoch

    def holds_round(self) -> bool:
        """Return whether the node holds a round."""
        return self.state.held is not None

    def on_confirmed(self, sent_ms: int) -> None:
        """Note that the coordinator has received a message sent at this time."""
        self.post(inputs.Confirmed(sent_ms))

    def on_message(self, message: agent_pb2.SessionResponse) -> None:
        """Apply a message of the coordinator."""
        self._guard(self._on_message, message)

    def _on_message(self, message: agent_pb2.SessionResponse) -> None:
        kind = message.WhichOneof("message")
        if message.acknowledged:
            self.post(inputs.Acknowledged(message.acknowledged))
        if kind == "welcome":
            self._on_welcome(message)
        elif kind == "desired":
            self._on_desired(message.epoch, message.desired)
        elif kind == "acknowledgement":
            self.log.acknowledged(message.acknowledgement, self.now_ms())
        elif kind == "notices":
            self._on_notices(message.notices)
        elif kind == "collect":
            self._evidence.answer(message.collect, self.supervisor.tasks)

    async def _collect(self, number: int, limit_s: float) -> Sequence[evidence_pb2.RankEvidence]:
        """Return what the workers of a round do; nothing if the node does not hold it."""
        held = self.state.held
        if held is None or held.number != number:
            return ()
        return await self.supervisor.evidence(limit_s)

    def _on_welcome(self, message: agent_pb2.SessionResponse) -> None:
        welcome = message.welcome
        self.coordinator_id = welcome.coordinator_id
        self.coordinator_durable = welcome.coordinator_durable
        self.run_number = welcome.run
        self.log.on_welcome(welcome.node_name, welcome.arguments_differ_from)
        self.log.coordinator = self.link.target
        self.post(inputs.Welcomed(message.epoch))
        if welcome.HasField("desired"):
            self._on_desired(message.epoch, welcome.desired)
        if not self.supervisor.is_starting:  # else it is logged with the start
            self.log.reached()
        if welcome.HasField("notices") or self.state.notices:
            self._on_notices(welcome.notices)

    def _on_notices(self, message: agent_pb2.Notices) -> None:
        self.post(inputs.NoticesReceived(notices := parse_notices(message, self.now_ms())))
        self.supervisor.tasks.create_task(self._log_notices(notices))

    async def _log_notices(self, notices: tuple[Notice, ...]) -> None:
        await self.supervisor.notices_written()  # a reader of the log finds the file
        self.log.notices(notices, self.now_ms())

    def _on_desired(self, epoch: int, message: agent_pb2.DesiredState) -> None:
        now_ms = self.now_ms()
        received = parse_desired(epoch, message, now_ms)
        if received is None:
            log.error("desired_state_ignored", then="install matching versions of rallypoint")
            return
        misfit = find_misfit(received.desired, self.settings.workers)
        if misfit:
            log.error("order_refused", why=misfit, then="nothing starts; report a bug")
            return
        which, before = message.WhichOneof("state"), self.state
        if which == "finished" and before.ending is None:
            here = last_round(self.node_name, self.settings.host_name, self._last_held, now_ms)
            self.callbacks.finished(message.finished, here)
        # Before the log line, which takes longer: the workers of all nodes wait for this.
        self.post(received)
        if before.drain is None and received.drain and self.state.drain:
            self.log.drain(received.drain, now_ms)
        if which == "stop" and before.held is not None:
            self.log.round_stopped(message.stop.round, message.stop.text)
        elif which == "run" and before.held and self.is_wanted(message.run.header.number):
            self.log.round_continued(before.held.number)
        self.log.standby(is_spare=which == "standby" and message.standby.spare)

    def on_disconnected(self, why: str, *, is_undecided: bool = False) -> None:
        """Note that there is no session; call back now and then."""
        self._guard(self._on_disconnected, why, is_undecided)

    def _on_disconnected(self, why: str, is_undecided: bool) -> None:
        self.post(inputs.Disconnected())
        state, now_ms = self.state, self.now_ms()
        was, now = self.log.was_reached, self.link.is_answered
        wanted = self.log.on_disconnected(now_ms, is_undecided=is_undecided, is_answered=now)
        if wanted and state.ending is None:
            absence = find_absence(state, why, now_ms, was_reached=was, is_answered=now)
            self.callbacks.disconnected(absence)

    def on_dismissed(self, exit_code: int, text: str) -> None:
        """Note that the coordinator refuses this agent for good."""
        self.is_dismissed = True
        self.post(inputs.Dismissed(exit_code, text))
