"""The agent of a node in a thread beside the program, which starts and stops its workers.

The agent's core decides as it does under `node-agent`. After each of its steps the program's thread
finds a new `View`. Every method may be called in any thread, and none of them waits without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import HeldRound
from rallypoint.agent.core.state import Ending
from rallypoint.agent.hosting.keeper import CannotHost, Keeper
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.base.log import get_logger
from rallypoint.embedded.agent_thread import AgentGone, EmbeddedAgent, NewWorkers
from rallypoint.embedded.ended import Ended
from rallypoint.wire.access import Access

log = get_logger()

SLICE_S = 0.2
"""A wait is made of such parts: a signal that comes just before the thread blocks would not end it,
and its handler runs only between two of them."""
END_MARGIN_S = 30.0
"""How much longer than shutdown timeout and sweep the end of an agent may take: its parts close."""


class View(Struct, frozen=True):
    """What a node knows, at one moment: the round that it holds, and how its part in the job ends.

    Any thread may read it.
    """

    held: HeldRound | None = None
    taken: HeldRound | None = None
    """The round that the program has taken, in its last state: the node may be further."""
    ending: Ending | None = None
    """How this node's part ends, once that is decided."""
    ended: Ended | None = None
    """Set once the agent has ended: nothing of it runs any more."""

    @property
    def is_over(self) -> bool:
        """True once the agent has ended."""
        return self.ended is not None

    @property
    def is_ending(self) -> bool:
        """True when no further round begins on this node."""
        return self.is_over or self.ending is not None

    def wants(self, number: int) -> bool:
        """Return whether this round has to start or continue here."""
        held = self.held
        is_held = held is not None and held.number == number and not held.is_stopping
        return is_held and not self.is_ending

    def is_clean(self, number: int) -> bool:
        """Return whether no process of this round is left here."""
        return self.is_over or self.held is None or self.held.number != number


class EmbeddedNode(EmbeddedAgent):
    """The part of one node in a job."""

    def __init__(self, plan: LaunchPlan, new_workers: NewWorkers) -> None:
        """Prepare the agent; `start` starts it.

        Args:
            plan: what the node brings; without a coordinator, one is built in.
            new_workers: makes its workers, in the agent's loop.
        """
        access, hosting = plan.prove(), plan.meeting.hosting
        keeper = None if hosting is None else Keeper(hosting, access)
        self._changed = threading.Condition()
        self._view = View()
        self._is_signalled = False
        self.interruption: BaseException | None = None
        """What a signal handler has raised: code that catches every exception may have dropped it,
        so the next wait raises it again, unless the node leaves by then."""
        super().__init__(
            plan.settings(access, keeper=keeper),
            new_workers,
            master_port=plan.master_port,
        )

    def start(self) -> None:
        """Start the agent.

        Raises:
            AgentGone: it cannot begin, for example because the fixed port is in use, or because
                this node hosts the coordinator and cannot start it.
        """
        keeper = self.settings.keeper
        try:
            if keeper is not None:
                keeper.begin()
        except CannotHost as error:
            raise AgentGone(str(error)) from error
        super().start()

    @property
    def view(self) -> View:
        """What the node knows now."""
        return self._view

    @property
    def job_id(self) -> str:
        """The job's name."""
        return self.settings.job_id

    @property
    def coordinator(self) -> str:
        """host:port of the coordinators, also of a built-in one; first the one that serves."""
        return self.agent.coordinators

    @property
    def access(self) -> Access:
        """How its agent proves who it is."""
        return self.agent.settings.access

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
        if self.interruption is not None and not (self.is_leaving or self._view.is_ending):
            raise self.interruption

    def offers(self, number: int) -> bool:
        """Return whether a round after this one waits for the program to take it."""
        held = self._view.held
        return held is not None and held.number > number and not held.is_stopping

    def take(self) -> RunOrder | None:
        """Take the round that the node holds, unless it has to stop: None then."""
        with self._changed:
            held = self._view.held
            if held is None or held.is_stopping:
                return None
            self._update(replace(self._view, taken=held))
            return held.order

    def call_if_alive(self, call: Callable[[], None]) -> None:
        """Call it in the agent's loop, unless the agent has ended."""
        try:
            self.call(call)
        except AgentGone:
            if not self._view.is_over:
                raise

    @property
    def is_leaving(self) -> bool:
        """True once the program has decided to leave the job."""
        return self._farewell is not None or self._is_signalled

    def leave_on_signal(self, signum: int) -> None:
        """Stop the workers with this signal and leave the job; called again, kill the workers."""
        self._is_signalled = True
        self.post(inputs.SignalReceived(signum))

    def await_end(self) -> None:
        """Wait until the agent has left the job and nothing of it runs, for a bounded time."""
        limit_s = (self.settings.shutdown_timeout_ms + SWEEP_LIMIT_MS) / 1000 + END_MARGIN_S
        ends_s = time.monotonic() + limit_s
        self.wait(lambda view: view.is_over, limit_s)
        if not self.close("the program leaves", max(0.1, ends_s - time.monotonic())):
            log.error("agent_not_ended", within_s=limit_s, then="its helper kills the workers")
        keeper, ended = self.settings.keeper, self.ended
        if keeper is not None:
            keeper.is_over = ended is not None and ended.finished is not None
            keeper.await_end()

    # --- the agent's thread ---

    def _update(self, view: View) -> None:
        with self._changed:
            self._view = view
            self._changed.notify_all()

    def _stepped(self) -> None:
        with self._changed:
            state, view = self.agent.state, self._view
            if state.held is not view.held or state.ending is not view.ending:
                taken = view.taken
                if state.held and taken and state.held.number == taken.number:
                    taken = state.held
                self._update(replace(view, held=state.held, taken=taken, ending=state.ending))

    def _has_ended(self, ended: Ended) -> None:
        self._update(replace(self._view, held=None, ended=ended))
