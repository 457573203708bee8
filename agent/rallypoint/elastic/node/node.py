"""The agent of a node in a thread beside the program, which starts and stops its workers.

The agent's core decides as it does under `node-agent`. After each of its steps the program's thread
finds a new `View`. Every method may be called in any thread, and none of them waits without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.embedded.agent_thread import AgentGone, EmbeddedAgent, NewWorkers
from rallypoint.agent.embedded.ended import Ended
from rallypoint.agent.hosting.keeper import CannotHost, Keeper
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.base.log import get_logger
from rallypoint.elastic.node.built_in import reaching_coordinator
from rallypoint.elastic.node.view import View
from rallypoint.wire.access import Access

log = get_logger()

_T = TypeVar("_T")

SLICE_S = 0.2
"""A wait is made of such parts: a signal that comes just before the thread blocks would not end it,
and its handler runs only between two of them."""
END_MARGIN_S = 30.0
"""How much longer than shutdown timeout and sweep the end of an agent may take: its parts close."""


class Node:
    """The part of one node in a job."""

    def __init__(self, plan: LaunchPlan, new_workers: NewWorkers) -> None:
        """Prepare the agent; `start` starts it.

        Args:
            plan: what the node brings.
            new_workers: makes its workers, in the agent's loop.
        """
        self._plan = plan
        self._changed = threading.Condition()
        self._view = View()
        self._is_leaving = False
        self.interruption: BaseException | None = None
        """What a signal handler has raised: code that catches every exception may have dropped it,
        so the next wait raises it again, unless the node leaves by then."""
        access, hosting = plan.prove(), plan.meeting.hosting
        keeper = None if hosting is None else Keeper(hosting, access)
        is_alone = plan.meeting.coordinator is None
        self._embedded = EmbeddedAgent(
            plan.settings(access, keeper=keeper),
            new_workers,
            stepped=self._on_step,
            coordinator=partial(reaching_coordinator, None) if is_alone else None,
            on_ended=self._on_ended,
            master_port=plan.master_port,
        )

    def start(self) -> None:
        """Start the agent.

        Raises:
            AgentGone: it cannot begin, for example because the fixed port is in use, or because
                this node hosts the coordinator and cannot start it.
        """
        keeper = self._embedded.settings.keeper
        try:
            if keeper is not None:
                keeper.begin()
        except CannotHost as error:
            raise AgentGone(str(error)) from error
        self._embedded.start()

    @property
    def view(self) -> View:
        """What the node knows now."""
        return self._view

    @property
    def job_id(self) -> str:
        """The job's name."""
        return self._plan.meeting.job_id

    @property
    def coordinator(self) -> str:
        """host:port of the coordinators, also of a built-in one; first the one that serves."""
        return self._embedded.agent.coordinators

    @property
    def access(self) -> Access:
        """How its agent proves who it is."""
        return self._embedded.agent.settings.access

    def wait(self, is_done: Callable[[View], bool], timeout_s: float | None = None) -> View:
        """Wait until a condition holds or the agent has ended, and return the view of that moment.

        A signal handler that raises ends the wait.

        Args:
            is_done: the condition.
            timeout_s: the longest wait; None: the agent bounds it.
        """
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            self._raise_interruption()
            while not (is_done(self._view) or self._view.is_over):
                self._raise_interruption()
                left_s = SLICE_S if ends_s is None else min(SLICE_S, ends_s - time.monotonic())
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return self._view

    def _raise_interruption(self) -> None:
        is_leaving = self._is_leaving or self._view.is_ending
        if self.interruption is not None and not is_leaving:
            raise self.interruption

    def take(self) -> RunOrder | None:
        """Take the round that the node holds, unless it has to stop: None then."""
        with self._changed:
            held = self._view.held
            if held is None or held.is_stopping:
                return None
            self._update(replace(self._view, taken=held))
            return held.order

    def call(self, call: Callable[[], _T]) -> _T:
        """Return what `call` returns in the agent's loop.

        Raises:
            AgentGone: the agent has ended, or does not answer.
        """
        return self._embedded.call(call)

    def call_if_alive(self, call: Callable[[], None]) -> None:
        """Call it in the agent's loop, unless the agent has ended."""
        try:
            self._embedded.call(call)
        except AgentGone:
            if not self._view.is_over:
                raise

    def forward(self, signum: int) -> None:
        """Pass a signal on to the workers, which does not end the agent."""
        self.post(inputs.SignalReceived(signum))

    def post(self, input: inputs.Input) -> None:
        """Give the core an input; an agent that has ended ignores it."""
        self._embedded.post(input)

    @property
    def is_leaving(self) -> bool:
        """True once the program has decided to leave the job."""
        return self._is_leaving

    def leave(self, text: str) -> None:
        """Stop the workers and leave the job, because the program cannot continue.

        Args:
            text: why, as one line.
        """
        self._is_leaving = True
        self._embedded.leave(text, exit_code=1)

    def leave_on_signal(self, signum: int) -> None:
        """Stop the workers with this signal and leave the job; called again, kill the workers."""
        self._is_leaving = True
        self.post(inputs.SignalReceived(signum))

    def await_end(self) -> None:
        """Wait until the agent has left the job and nothing of it runs, for a bounded time."""
        limit_s = (self._plan.options.shutdown_timeout + SWEEP_LIMIT_MS) / 1000 + END_MARGIN_S
        ends_s = time.monotonic() + limit_s
        self.wait(lambda view: view.is_over, limit_s)
        if not self._embedded.close("the program leaves", max(0.1, ends_s - time.monotonic())):
            log.error("agent_not_ended", within_s=limit_s, then="its helper kills the workers")
        keeper, ended = self._embedded.settings.keeper, self._embedded.ended
        if keeper is not None:
            keeper.is_over = ended is not None and ended.finished is not None
            keeper.await_end()

    # --- the agent's thread ---

    def _update(self, view: View) -> None:
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def _on_step(self) -> None:
        with self._changed:
            self._look()

    def _look(self) -> None:
        state, view = self._embedded.agent.state, self._view
        if state.held is not view.held or state.ending is not view.ending:
            taken = view.taken
            if state.held is not None and taken is not None and state.held.number == taken.number:
                taken = state.held
            self._update(replace(view, held=state.held, taken=taken, ending=state.ending))

    def _on_ended(self, ended: Ended) -> None:
        self._update(replace(self._view, held=None, ended=ended))


__all__ = ["AgentGone", "Node"]
