"""An agent with its own event loop, in a daemon thread of another program."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import TypeVar

from msgspec.structs import replace

from rallypoint.agent.agent import Agent
from rallypoint.agent.containment import describe_error
from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStandby, RunOrder
from rallypoint.agent.core.leaving.away import Absence
from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.life import take_part
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.agent.node_workers import Workers
from rallypoint.agent.settings import AgentCallbacks, Settings
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.base.exit_codes import EXIT_SOFTWARE
from rallypoint.base.log import get_logger
from rallypoint.base.values import describe_in_sentence
from rallypoint.embedded.built_in import reaching_coordinator
from rallypoint.embedded.ended import Ended, EndKind, find_kind
from rallypoint.embedded.python_log import use_python_log
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.loading import FORKS, claim_grpc, has_fork_handlers

log = get_logger()

BEGIN_S_MAX = 30.0
"""How long the thread may take to begin; a busy machine is slow."""
CALL_S_MAX = 10.0
"""How long a call in the agent's loop may take."""
EXIT_S_MAX = 3.0
"""How long the end of the interpreter waits for the Goodbye."""
DRAIN_S = 0.05
"""gRPC completes cancelled calls a moment later. All loops of the process share its queue, which
stops for a while at a loop that is closed already."""

_T = TypeVar("_T")

NewWorkers = Callable[[Agent, asyncio.TaskGroup], Workers]
"""Makes the workers of an agent, in its event loop; the group runs their tasks."""


class AgentGone(Exception):
    """The agent has ended, or did not begin."""


class EmbeddedAgent:
    """An agent in a thread. All methods may be called from any other thread.

    Signals belong to the program around it, so `Settings.signals` has to be empty. When the
    interpreter exits, the agent stops its workers and says goodbye.
    """

    def __init__(
        self,
        settings: Settings,
        new_workers: NewWorkers,
        *,
        master_port: int = 0,
    ) -> None:
        """Prepare an agent; `start` starts it.

        Args:
            settings: how the agent is started, with `signals` empty. If it is standalone, the
                coordinator is built in.
            new_workers: makes its workers.
            master_port: fixed port for the store of rank 0; 0: a new free one for each round.
        """
        assert not settings.signals, "signal handlers belong to the program around the agent"
        self.settings = settings
        self.absence: Absence | None = None
        """Of the last loss of the session that was logged; None before the first."""
        self.ended: Ended | None = None
        """Set when the agent has ended."""
        self._new_workers = new_workers
        self._master_port = master_port
        self._thread = threading.Thread(target=self._run, name="rallypoint-agent", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        """Set once `agent` is."""
        self._begun = threading.Event()
        self._pid = 0
        self._agent: Agent | None = None
        """Set by `start`."""
        self._outcome: tuple[agent_pb2.Finished, LastRound] | None = None
        self._farewell: inputs.LeaveRequested | None = None
        """Set by `leave`, which may come before the agent exists."""
        self._was_spare = False
        self._error = ""
        """Why the thread could not begin or continue; empty: it could."""

    def start(self) -> None:
        """Start the thread; return when its loop runs.

        Raises:
            AgentGone: it cannot begin, for example because no port is free, or because this
                process is a fork of one with an agent.
        """
        use_python_log()
        try:
            self._pid = _claim_grpc()
        except AgentGone as error:
            self._error = str(error)
            self._end(EXIT_SOFTWARE)
            raise
        _warn_of_fork_handlers()
        self._thread.start()
        atexit.register(self._leave_at_exit)
        if not self._begun.wait(BEGIN_S_MAX):
            raise AgentGone(f"the agent's thread did not begin within {BEGIN_S_MAX:g} s")
        if self._error:
            raise AgentGone(self._error)

    @property
    def agent(self) -> Agent:
        """The agent, once `start` has returned; it belongs to its own thread."""
        assert self._agent is not None
        return self._agent

    @property
    def is_connected(self) -> bool:
        """True while there is a session. It may change at any time."""
        agent = self._agent
        return agent is not None and agent.state.away_since_ms is None

    @property
    def is_finishing(self) -> bool:
        """True once the run is over, also while workers here are still to be stopped."""
        agent = self._agent
        ending = None if agent is None else agent.state.ending
        return ending is not None and ending.kind is GoodbyeKind.FINISHED

    @property
    def run_ending(self) -> str:
        """The answer that the run before has to end first; empty: it has ended."""
        return "" if self._agent is None else self._agent.link.run_ending

    @property
    def node_name(self) -> str:
        """The node's name, as the coordinator knows it."""
        return self.agent.node_name

    def post(self, input: inputs.Input) -> None:
        """Apply an input of the core in the agent's loop; nothing happens once it has ended."""
        self._in_loop(lambda: self.agent.post(input))

    def call(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns in the agent's loop.

        Raises:
            AgentGone: the agent has ended, or does not answer in time.
        """
        result: concurrent.futures.Future[_T] = concurrent.futures.Future()

        def run() -> None:
            try:
                result.set_result(call())
            except Exception as error:  # noqa: BLE001  # it belongs to the caller
                result.set_exception(error)

        if not self._in_loop(run):
            raise AgentGone("the agent has ended")
        try:
            return result.result(CALL_S_MAX)
        except TimeoutError:
            raise AgentGone(f"the agent does not answer within {CALL_S_MAX:g} s") from None

    def _in_loop(self, run: Callable[[], None]) -> bool:
        """Run something in the agent's loop soon; return whether there still is one."""
        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(run)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def leave(self, text: str, exit_code: int = 0) -> None:
        """Begin to leave the job: stop the workers, then say goodbye.

        Args:
            text: why, as one line.
            exit_code: 0: on purpose; any other: this node cannot continue.
        """
        self._farewell = inputs.LeaveRequested(exit_code, text)
        self.post(self._farewell)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the agent; return whether it has ended."""
        if self._thread is threading.current_thread():
            return False
        if not self._thread.ident:
            return self.ended is not None
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self, text: str, timeout_s: float, exit_code: int = 0) -> bool:
        """Leave the job and wait for the end; return whether the agent has ended in time."""
        self.leave(text, exit_code)
        has_ended = self.join(timeout_s)
        atexit.unregister(self._leave_at_exit)
        return has_ended

    def _leave_at_exit(self) -> None:
        if os.getpid() == self._pid:  # not in a process that was forked from this one
            self.close("its process exits", EXIT_S_MAX)

    # --- the thread ---

    def _run(self) -> None:
        exit_code = EXIT_SOFTWARE
        try:
            with asyncio.Runner() as runner:
                exit_code = runner.run(self._live())
        except Exception as error:  # the root of the thread
            self._error = describe_error(error)
            log.error("agent_failed", error=self._error, then="it ends", exc_info=error)
        finally:
            self._end(exit_code)
            self._begun.set()

    def _end(self, exit_code: int) -> None:
        """Announce the end, once."""
        if self.ended is None:
            self.ended = self._find_end(exit_code)
            self._has_ended(self.ended)

    def _has_ended(self, ended: Ended) -> None:
        """Do what a subclass does once, as the last thing in the agent's thread."""

    def _stepped(self) -> None:
        """Do what a subclass does in the agent's thread after each step of the core."""

    async def _live(self) -> int:
        async with self._serve() as (settings, failed):
            ports = PortReserver(self._master_port)
            callbacks = AgentCallbacks(
                self._on_finished, self._on_disconnected, None, self._on_step
            )
            agent = Agent(settings, callbacks, ports, time.monotonic_ns() // 1_000_000)
            self._agent, self._loop = agent, asyncio.get_running_loop()
            if self._farewell is not None:
                self.post(self._farewell)
            self._begun.set()
            exit_code = await take_part(
                agent, lambda tasks: self._new_workers(agent, tasks), failed
            )
            self._end(exit_code)
        await asyncio.sleep(DRAIN_S)
        return exit_code

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[tuple[Settings, asyncio.Future[None] | None]]:
        if not self.settings.is_standalone:
            yield self.settings, None
            return
        async with reaching_coordinator(None) as (target, access, failed):
            yield replace(self.settings, coordinator=target, access=access), failed

    def _on_step(self) -> None:
        desired = self.agent.state.desired
        if isinstance(desired, RunOrder):
            self._was_spare = False
        elif isinstance(desired, DesiredStandby) and desired.spare:
            self._was_spare = True  # also when the round that ran without this node has failed
        self._stepped()

    def _on_finished(self, message: agent_pb2.Finished, here: LastRound) -> None:
        self._outcome = (message, here)

    def _on_disconnected(self, absence: Absence) -> None:
        self.absence = absence
        then = "retrying" if absence.left_ms is not None else "workers keep running; retrying"
        if absence.left_ms is not None:
            then += f" for {describe_in_sentence(absence.left_ms)}"
        log.warning(
            "coordinator_not_reached",
            coordinator=self.agent.settings.coordinator,
            why=absence.why,
            then=then,
        )

    def _find_end(self, exit_code: int) -> Ended:
        agent = self._agent
        if agent is None or self._error:
            return Ended(kind=EndKind.FAILED, exit_code=EXIT_SOFTWARE, text=self._error)
        finished, here = self._outcome or (None, None)
        kind = find_kind(
            agent.state.ending,
            has_left=self._farewell is not None,
            is_refused=agent.is_dismissed,
            is_run_ending=bool(self.run_ending),
        )
        return Ended(
            kind=kind,
            exit_code=exit_code,
            text=self.run_ending if kind is EndKind.CLOSED else agent.exit_text,
            finished=finished,
            last_round=here,
            was_spare=self._was_spare,
        )


@cache
def _warn_of_fork_handlers() -> None:
    if has_fork_handlers():
        log.warning(
            "fork_handlers_found",
            why="the program imported gRPC before the agent",
            then=f"a fork of it may die of SIGSEGV; start the program with {FORKS}=0",
        )


def _claim_grpc() -> int:
    """Return this process's id, unless gRPC was used before the process was forked.

    Raises:
        AgentGone: it was; here it would wait for ever.
    """
    if claim_grpc(is_agent=True):
        return os.getpid()
    raise AgentGone(
        "this process is a fork of one that has already launched, where gRPC cannot work: "
        "start it with spawn or forkserver"
    )
