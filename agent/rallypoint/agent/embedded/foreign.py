"""Workers that another launcher runs, such as torchrun's: the agent asks, the launcher acts.

The launcher waits for an order (`await_order`), starts its workers, and reports what becomes of
them. While it runs a round, `stop_reason` tells it when the coordinator wants the round stopped.
It is never interrupted: a launcher that stops late is reported as blocked until it does.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Sequence

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStandby, DesiredStop, Notice, RunOrder
from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.embedded.ended import Ended
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS

_WITHDRAWN = "the round was stopped before it started here"


SLICE_S = 0.2
"""A wait is made of such parts: a signal that comes just before the thread blocks would not end it,
and its handler runs only between two of them."""


class ForeignWorkers:
    """The workers of one node, run by another launcher. Has the requests of `Workers`.

    What the launcher calls may be called from any thread but the agent's.
    """

    tasks: asyncio.TaskGroup

    def __init__(self, *, counts_workers: bool = True) -> None:
        """Begin without an agent; `attach` makes the object the workers of one.

        Args:
            counts_workers: the coordinator knows how many workers the node has; False: it counts
                nodes.
        """
        self._counts_workers = counts_workers
        self._agent: Agent | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()
        self._order: RunOrder | None = None
        """Ordered, but not taken by the launcher yet."""
        self._taken: RunOrder | None = None
        """The round that the launcher runs."""
        self._stop_reason: str | None = None
        self._sweep_token = 0
        """The sweep that waits for the launcher; 0: none."""
        self._blocked: asyncio.TimerHandle | None = None
        self._pids: tuple[int, ...] = ()
        self._asked_ms: int | None = None
        """When the launcher was asked to stop the round, by the agent's clock; None: it was not."""
        self._ended: Ended | None = None

    def attach(self, agent: Agent, tasks: asyncio.TaskGroup) -> ForeignWorkers:
        """Become the workers of an agent: what `EmbeddedAgent` takes as `new_workers`."""
        self._agent, self.tasks = agent, tasks
        self._loop = asyncio.get_running_loop()
        return self

    def on_ended(self, ended: Ended) -> None:
        """Note the end of the agent: what `EmbeddedAgent` takes as `on_ended`."""
        with self._changed:
            self._ended = ended
            self._order = None
            self._changed.notify_all()

    # --- the launcher ---

    def await_order(self, timeout_s: float) -> RunOrder | Ended:
        """Wait for the next round and take it: the launcher starts its workers now.

        The launcher must have reported the round before as stopped.

        Args:
            timeout_s: the longest wait, in seconds.

        Returns:
            The order, or how the job ended for this node.

        Raises:
            TimeoutError: neither came in time.
        """
        ends_s = time.monotonic() + timeout_s
        with self._changed:
            assert self._taken is None, "the round before was not reported as stopped"
            while self._order is None and self._ended is None:
                left_s = ends_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"no round was formed within {timeout_s:g} s")
                self._changed.wait(min(left_s, SLICE_S))
            if self._order is None:
                assert self._ended is not None
                return self._ended
            order = self._taken = self._order
            self._order, self._stop_reason, self._pids = None, None, ()
            self._asked_ms = None
        self._post(lambda agent: self._log_began(agent, order))
        return order

    def _log_began(self, agent: Agent, order: RunOrder) -> None:
        if self._counts_workers:
            agent.log.round_began(order)
        else:
            agent.log.node_round_began(order)

    @property
    def stop_reason(self) -> str | None:
        """Why the coordinator wants the taken round stopped; None while it has to run."""
        with self._changed:
            if self._taken is not None and self._ended is not None:
                return self._stop_reason or self._ended.text or "the agent has ended"
            return self._stop_reason

    @property
    def ended(self) -> Ended | None:
        """How the job ended for this node; None while it has not."""
        return self._ended

    @property
    def round(self) -> int:
        """Number of the round that the launcher runs; 0: none."""
        taken = self._taken
        return 0 if taken is None else taken.number

    def wait_ended(self, timeout_s: float) -> Ended | None:
        """Wait for the end of the agent; return it, or None when it does not come in time."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended is not None, timeout_s)
            return self._ended

    def started(self, pids: Sequence[int]) -> None:
        """Report that the workers of the taken round run.

        Args:
            pids: their process ids, by local rank.
        """
        taken, self._pids = self._taken, tuple(pids)
        if taken is not None:
            for local_rank, pid in enumerate(pids):
                self._post_input(inputs.WorkerStarted(taken.number, local_rank, pid))

    def not_started(self, local_rank: int, text: str) -> None:
        """Report that a worker could not be started, and why."""
        if self._taken is not None:
            self._post_input(inputs.WorkerNotStarted(self._taken.number, local_rank, text))

    def exited(
        self,
        local_rank: int,
        *,
        exit_code: int | None = None,
        signum: int | None = None,
        error: ErrorRecord | None = None,
        error_file: str = "",
        oom_killed: bool = False,
    ) -> None:
        """Report the end of a worker.

        Args:
            local_rank: of the worker.
            exit_code: how it ended; exactly one of `exit_code` and `signum` is set.
            signum: the signal that ended it.
            error: what it recorded.
            error_file: its error file.
            oom_killed: the kernel's OOM killer ended it.
        """
        taken, now_ms = self._taken, time.time_ns() // 1_000_000
        ended_ms = time.monotonic_ns() // 1_000_000
        if taken is None:
            return
        with self._changed:
            asked_ms = self._asked_ms
        self._post_input(
            inputs.WorkerEnded(
                taken.number,
                local_rank,
                exit_code,
                signum,
                error,
                "",
                ended_ms,
                oom_killed=oom_killed,
                failed_ms=now_ms,
                error_file=error_file,
                signalled_ms=asked_ms,
            )
        )

    def stopped(self, why: str) -> None:
        """Report that no worker of the taken round runs any more.

        Args:
            why: reason of the launcher; the coordinator's counts if it wanted the stop.
        """
        with self._changed:
            taken, self._taken = self._taken, None
            self._stop_reason = None
        if taken is not None:
            self._post(lambda agent: self._report_stopped(agent, taken, why))

    def _report_stopped(self, agent: Agent, taken: RunOrder, why: str) -> None:
        agent.post(inputs.RoundGivenUp(taken.number, why))
        held, now_ms = agent.state.held, agent.now_ms()
        if held is not None and held.number == taken.number:
            for worker in held.workers:
                if worker.exit is None:
                    end = inputs.WorkerEnded(
                        *(taken.number, worker.local_rank, None, signal.SIGTERM, None, "", now_ms),
                        signalled_ms=now_ms,  # the launcher has stopped it
                    )
                    agent.post(end)
        self._finish_sweep(agent)

    def _post(self, call: Callable[[Agent], None]) -> None:
        agent, loop = self._agent, self._loop
        assert agent is not None and loop is not None, "the agent has not begun"

        def run() -> None:
            call(agent)

        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError:  # the agent has ended
            return

    def _post_input(self, input: inputs.Input) -> None:
        self._post(lambda agent: agent.post(input))

    # --- the agent, in its loop ---

    @property
    def is_starting(self) -> bool:
        """True while an order waits for the launcher."""
        return self._order is not None

    async def begin(self) -> None:
        """Nothing has to be prepared."""

    def start(self, order: RunOrder) -> None:
        """Offer a round to the launcher."""
        with self._changed:
            self._order = order
            self._changed.notify_all()

    def signal(self, signum: int) -> None:
        """Ask the launcher to stop the round, or withdraw an order that it has not taken."""
        agent = self._agent
        assert agent is not None
        reason = _find_reason(agent)
        with self._changed:
            order, self._order = self._order, None
            if self._taken is not None:
                self._ask_to_stop(reason)
            self._changed.notify_all()
        if order is not None:
            for local_rank in range(order.assignment.local_world_size):
                agent.post(inputs.WorkerNotStarted(order.number, local_rank, _WITHDRAWN))

    def forward(self, signum: int) -> None:
        """Signals go to the launcher itself."""

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Workers of another launcher have no notice file."""

    async def notices_written(self) -> None:
        """There is none."""

    def sweep(self, token: int) -> None:
        """Wait until the launcher has stopped the round; report it as blocked if it is late."""
        agent, loop = self._agent, self._loop
        assert agent is not None and loop is not None
        self._sweep_token = token
        with self._changed:
            is_taken = self._taken is not None
            if is_taken:  # no signal came before if all workers had ended
                self._ask_to_stop(_find_reason(agent))
                self._changed.notify_all()
        if not is_taken:
            self._finish_sweep(agent)
        else:
            self._blocked = loop.call_later(SWEEP_LIMIT_MS / 1000, self._report_blocked, token)

    def _ask_to_stop(self, reason: str) -> None:
        if self._stop_reason is None:
            self._stop_reason, self._asked_ms = reason, time.monotonic_ns() // 1_000_000

    def _report_blocked(self, token: int) -> None:
        if token == self._sweep_token and self._agent is not None:
            self._agent.post(inputs.SweepBlocked(token, self._pids))

    def _finish_sweep(self, agent: Agent) -> None:
        if self._blocked is not None:
            self._blocked.cancel()
        token, self._sweep_token = self._sweep_token, 0
        if token:
            agent.post(inputs.Swept(token))

    def arm_fence(self, at_ms: int) -> None:
        """Another launcher has no fence: `Settings.fence_ms` has to be 0."""

    async def check_files(self, workers: int) -> None:
        """Another launcher makes its files itself."""

    async def end_workers(self, grace_s: float) -> None:
        """Ask the launcher to stop: the end of the agent is a reason too."""

    def parts(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Nothing has to be closed."""
        return ()


def _find_reason(agent: Agent) -> str:
    """Return why the held round stops."""
    state = agent.state
    if state.ending is not None and state.ending.text:
        return state.ending.text
    if isinstance(state.desired, DesiredStop) and state.desired.text:
        return state.desired.text
    if isinstance(state.desired, DesiredStandby):
        return "the coordinator needs this node for no round now"
    if isinstance(state.desired, RunOrder):
        return f"round {state.desired.number} begins"
    return "the round is stopped"
