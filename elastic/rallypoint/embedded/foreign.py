"""Workers that another launcher runs, such as torchrun's: the agent asks, the launcher acts.

The launcher waits for an order (`await_order`), starts its workers, and reports what becomes of
them. While it runs a round, `stop_reason` tells it when the coordinator wants the round stopped.
It is never interrupted: a launcher that stops late is reported as blocked until it does.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import DesiredStandby, DesiredStop, Notice, RunOrder
from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.embedded.ended import Ended
from rallypoint.embedded.node import EmbeddedNode
from rallypoint.v1 import evidence_pb2

_WITHDRAWN = "the round was stopped before it started here"


class ForeignNode(EmbeddedNode):
    """A node whose workers another launcher runs.

    The launcher calls it from any thread but the agent's.
    """

    def __init__(self, plan: LaunchPlan, *, counts_workers: bool = True) -> None:
        """Prepare the agent; `start` starts it.

        Args:
            plan: what the node brings.
            counts_workers: the coordinator knows how many workers the node has; False: it counts
                nodes.
        """
        self._counts_workers = counts_workers
        self._order: RunOrder | None = None
        """Ordered, but not taken by the launcher yet."""
        self._taken: RunOrder | None = None
        """The round that the launcher runs."""
        self._stop_reason: str | None = None
        self._pids: tuple[int, ...] = ()
        self._asked_ms: int | None = None
        """When the launcher was asked to stop the round, by the agent's clock; None: it was not."""
        self._workers = ForeignWorkers(self)
        super().__init__(plan, self._workers.attach)

    def offers(self, number: int) -> bool:
        """Return whether a round waits for the launcher to take it."""
        return self._order is not None

    def take(self) -> RunOrder | None:
        """Take the round that waits: the launcher starts its workers now. None: there is none.

        The launcher must have reported the round before as stopped.
        """
        with self._changed:
            assert self._taken is None, "the round before was not reported as stopped"
            order, self._order = self._order, None
            if order is not None:
                self._taken, self._stop_reason, self._pids, self._asked_ms = order, None, (), None
        if order is not None:
            self._in_loop(partial(self._log_began, order))
        return order

    def _log_began(self, order: RunOrder) -> None:
        log = self.agent.log
        (log.round_began if self._counts_workers else log.node_round_began)(order)

    def await_order(self, timeout_s: float) -> RunOrder | Ended:
        """Wait for the next round, and take it.

        Args:
            timeout_s: the longest wait, in seconds.

        Returns:
            The order, or how the job ended for this node.

        Raises:
            TimeoutError: neither came in time.
        """
        ends_s = time.monotonic() + timeout_s
        while True:
            view = self.wait(lambda view: self.offers(0), ends_s - time.monotonic())
            if (order := self.take()) is not None:
                return order
            if view.ended is not None:
                return view.ended
            if time.monotonic() >= ends_s:
                raise TimeoutError(f"no round was formed within {timeout_s:g} s")

    @property
    def stop_reason(self) -> str | None:
        """Why the coordinator wants the taken round stopped; None while it has to run."""
        with self._changed:
            if self._taken is not None and self._view.ended is not None:
                return self._stop_reason or self._view.ended.text or "the agent has ended"
            return self._stop_reason

    @property
    def round(self) -> int:
        """Number of the round that the launcher runs; 0: none."""
        taken = self._taken
        return 0 if taken is None else taken.number

    def wait_ended(self, timeout_s: float) -> Ended | None:
        """Wait for the end of the agent; return it, or None when it does not come in time."""
        return self.wait(lambda view: False, timeout_s).ended

    def started(self, pids: Sequence[int]) -> None:
        """Report that the workers of the taken round run.

        Args:
            pids: their process ids, by local rank.
        """
        taken, self._pids = self._taken, tuple(pids)
        if taken is not None:
            for local_rank, pid in enumerate(pids):
                self.post(inputs.WorkerStarted(taken.number, local_rank, pid))

    def exited(
        self,
        local_rank: int,
        *,
        exit_code: int | None = None,
        signum: int | None = None,
        error: ErrorRecord | None = None,
    ) -> None:
        """Report the end of a worker.

        Args:
            local_rank: of the worker.
            exit_code: how it ended; exactly one of `exit_code` and `signum` is set.
            signum: the signal that ended it.
            error: what it recorded.
        """
        taken, now_ms = self._taken, time.time_ns() // 1_000_000
        ended_ms = time.monotonic_ns() // 1_000_000
        if taken is None:
            return
        with self._changed:
            asked_ms = self._asked_ms
        self.post(
            inputs.WorkerEnded(
                *(taken.number, local_rank, exit_code, signum, error, "", ended_ms),
                failed_ms=now_ms,
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
            self._in_loop(partial(self._report_stopped, taken, why))

    def _report_stopped(self, taken: RunOrder, why: str) -> None:
        agent = self.agent
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
        self._workers.finish_sweep()

    # --- the agent's thread ---

    def _offer(self, order: RunOrder) -> None:
        with self._changed:
            self._order = order
            self._changed.notify_all()

    def _withdraw(self) -> RunOrder | None:
        """Ask the launcher to stop its round; return the order that it has not taken."""
        with self._changed:
            order, self._order = self._order, None
            self._ask_to_stop()
        return order

    def _ask_to_stop(self) -> bool:
        """Ask the launcher to stop the round that it runs; return whether it runs one."""
        with self._changed:
            is_taken = self._taken is not None
            if is_taken and self._stop_reason is None:
                self._stop_reason = _find_reason(self.agent)
                self._asked_ms = time.monotonic_ns() // 1_000_000
            self._changed.notify_all()
        return is_taken

    def _has_ended(self, ended: Ended) -> None:
        with self._changed:
            self._order = None
            super()._has_ended(ended)


class ForeignWorkers:
    """The workers of such a node, for its agent: the requests of `Workers`."""

    tasks: asyncio.TaskGroup

    def __init__(self, node: ForeignNode) -> None:
        """Begin without an agent; `attach` is what `EmbeddedNode` takes as `new_workers`."""
        self._node = node
        self._sweep_token = 0
        """The sweep that waits for the launcher; 0: none."""
        self._blocked: asyncio.TimerHandle | None = None

    def attach(self, agent: Agent, tasks: asyncio.TaskGroup) -> ForeignWorkers:
        """Become the workers of the node's agent."""
        self.tasks = tasks
        return self

    @property
    def is_starting(self) -> bool:
        """True while an order waits for the launcher."""
        return self._node.offers(0)

    async def begin(self) -> None:
        """Nothing has to be prepared."""

    def start(self, order: RunOrder) -> None:
        """Offer a round to the launcher."""
        self._node._offer(order)

    def signal(self, signum: int) -> None:
        """Ask the launcher to stop the round, or withdraw an order that it has not taken."""
        order = self._node._withdraw()
        if order is not None:
            for local_rank in range(order.assignment.local_world_size):
                self._node.agent.post(inputs.WorkerNotStarted(order.number, local_rank, _WITHDRAWN))

    def forward(self, signum: int) -> None:
        """Signals go to the launcher itself."""

    def tell(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Workers of another launcher have no notice file."""

    async def notices_written(self) -> None:
        """There is none."""

    def sweep(self, token: int) -> None:
        """Wait until the launcher has stopped the round; report it as blocked if it is late."""
        self._sweep_token = token
        if not self._node._ask_to_stop():  # no signal came before if all workers had ended
            self.finish_sweep()
        else:
            loop = asyncio.get_running_loop()
            self._blocked = loop.call_later(SWEEP_LIMIT_MS / 1000, self._report_blocked, token)

    def _report_blocked(self, token: int) -> None:
        if token == self._sweep_token:
            self._node.agent.post(inputs.SweepBlocked(token, self._node._pids))

    def finish_sweep(self) -> None:
        """Answer the sweep that waits, if one does: the launcher has stopped the round."""
        if self._blocked is not None:
            self._blocked.cancel()
        token, self._sweep_token = self._sweep_token, 0
        if token:
            self._node.agent.post(inputs.Swept(token))

    async def evidence(self, limit_s: float) -> Sequence[evidence_pb2.RankEvidence]:
        """Nothing is known but their processes."""
        return ()

    async def log_survivors(self, limit_s: float) -> None:
        """Nothing is known of them."""

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
