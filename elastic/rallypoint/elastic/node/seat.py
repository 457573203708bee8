"""A node's place in a job, round by round, for the thread of a program that runs its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.elastic import rendezvous as api
from rallypoint.elastic.node.coordinated import check_preload
from rallypoint.elastic.rendezvous import RendezvousError, RendezvousStateError
from rallypoint.embedded.agent_thread import AgentGone
from rallypoint.embedded.ended import EndKind, describe_end
from rallypoint.embedded.foreign import ForeignNode
from rallypoint.embedded.node import EmbeddedNode, View
from rallypoint.v1 import job_pb2

PID_MAX = 1 << 22
"""The largest pid of Linux, and of the protocol."""


class Seat:
    """A node in a job, and the round that the program has taken."""

    def __init__(self, node: EmbeddedNode) -> None:
        """Begin before the first round."""
        self._node = node
        self._order: RunOrder | None = None

    @property
    def node(self) -> EmbeddedNode:
        """The node."""
        return self._node

    @property
    def view(self) -> View:
        """What the node knows now."""
        return self._node.view

    @property
    def order(self) -> RunOrder:
        """The round that the program has taken.

        Raises:
            RendezvousStateError: there was none yet.
        """
        if self._order is None:
            raise RendezvousStateError("no round has begun on this node yet")
        return self._order

    @property
    def has_begun(self) -> bool:
        """True once a round has begun on this node."""
        return self._order is not None

    @property
    def number(self) -> int:
        """Number of the round that the program has taken; 0 before the first."""
        return 0 if self._order is None else self._order.number

    @property
    def is_wanted(self) -> bool:
        """True while the round that the program has taken has to continue."""
        return self._node.view.wants(self.number)

    def start(self) -> None:
        """Join the job.

        Raises:
            RendezvousError: the agent cannot begin.
        """
        try:
            self._node.start()
        except AgentGone as error:
            raise RendezvousError(f"cannot join the job: {error}") from error

    def await_next(self) -> bool:
        """Wait until a round begins here that the program has not taken; False: none will."""
        node, number = self._node, self.number
        return not node.wait(lambda view: view.is_ending or node.offers(number)).is_ending

    def await_change(self, seen: View, limit_s: float) -> None:
        """Wait until the node knows something else, for at most `limit_s` seconds."""
        self._node.wait(lambda view: view is not seen, limit_s)

    def next_order(self) -> RunOrder:
        """Report the round before as stopped, wait for the next one, and take it.

        Raises:
            RendezvousError: none will begin here; the subclass says why.
        """
        self.stopped()
        while self.await_next():
            order = self._node.take()
            if order is not None:
                self._order = order
                return order
        raise self.explain_end()

    def began(self, ids: Sequence[Any]) -> None:
        """Report that all workers of the taken round run.

        Args:
            ids: of the workers, by local rank; whole numbers are taken for pids.
        """

    def succeeded(self) -> None:
        """Report that all workers of the taken round have exited with 0."""

    def failed(self, failures: Mapping[int, Any], doubt: str) -> None:
        """Report the failures of workers.

        Args:
            failures: a `ProcessFailure`, by local rank; none: the program doubts its workers.
            doubt: why, as one line.
        """
        if not failures:
            self.fail(0, doubt)

    def stopped(self) -> None:
        """Report that no worker of the taken round runs any more."""

    def explain_end(self) -> RendezvousError:
        """Return why no further round begins on this node, once its agent has ended."""
        self._node.await_end()
        ended = self._node.view.ended
        if ended is None:
            return RendezvousError("the agent does not end")
        name, text = describe_end(ended, self._node.job_id)
        error: RendezvousError = getattr(api, name)(text)
        return error

    def fail(self, local_rank: int, text: str) -> None:
        """Report that the program does not trust a worker that may still run."""
        error = ErrorRecord(text, "", 0)
        self._node.post(inputs.WorkerRecorded(self.number, local_rank, error, ""))

    def forward(self, signum: int) -> None:
        """Do nothing: the program passes notifications on to its workers."""

    def has_ended_well(self) -> bool:
        """Return whether the run has succeeded, once all workers here have.

        Waits for the end of the agent if it is ending.
        """
        if not self._node.view.is_ending:
            return False
        self.stopped()
        self._node.await_end()
        ended = self._node.view.ended
        if ended is None or ended.finished is None:
            # Without a coordinator, a node that was alone in its round knows the outcome.
            is_known = ended is not None and ended.kind is EndKind.FINISHED
            return is_known and ended is not None and ended.exit_code == 0
        return ended.finished.outcome == job_pb2.OUTCOME_SUCCEEDED

    def leave(self, signum: int | None, text: str) -> None:
        """Begin to leave the job, unless that has begun.

        Args:
            signum: the signal that the workers get; None: SIGTERM.
            text: why, if there was no signal.
        """
        if self._node.is_leaving or self._node.view.is_ending:
            return
        if signum is not None:
            self._node.leave_on_signal(signum)
        else:
            self._node.leave(text, exit_code=1)

    def close(self) -> None:
        """Leave the job if that has not happened, and wait until nothing runs here."""
        self.leave(None, "the program has ended its part")
        self._node.await_end()


class ForeignSeat(Seat):
    """The seat of a program that starts its workers itself."""

    _node: ForeignNode

    def __init__(self, plan: LaunchPlan) -> None:
        """Prepare a node.

        Raises:
            ValueError: its options have something to preload.
        """
        check_preload(plan.options, None)
        super().__init__(ForeignNode(plan))

    def began(self, ids: Sequence[Any]) -> None:
        """Report that all workers of the taken round run.

        Args:
            ids: of the workers, by local rank; whole numbers are taken for pids.
        """
        self._node.started([one if _is_pid(one) else 1 for one in ids])

    def succeeded(self) -> None:
        """Report that all workers of the taken round have exited with 0."""
        for local_rank in range(self.order.assignment.local_world_size):
            self._node.exited(local_rank, exit_code=0)

    def failed(self, failures: Mapping[int, Any], doubt: str) -> None:
        """Report the failures of workers.

        Args:
            failures: a `ProcessFailure`, by local rank; none: the program doubts its workers.
            doubt: why, as one line.
        """
        super().failed(failures, doubt)
        for local_rank, failure in failures.items():
            code, text = getattr(failure, "exitcode", 1) or 1, _text_of(failure)
            self._node.exited(
                local_rank,
                exit_code=code if code > 0 else None,
                signum=-code if code < 0 else None,
                error=ErrorRecord(text, "", 0) if text else None,
            )

    def stopped(self) -> None:
        """Report that no worker of the taken round runs any more."""
        if self.has_begun:
            self._node.stopped("the program restarts its workers")

    def close(self) -> None:
        """Leave the job if that has not happened, and wait until nothing runs here."""
        self.leave(None, "the program has ended its part")
        self.stopped()
        self._node.await_end()


def _is_pid(worker_id: Any) -> bool:
    """Return whether an id can be a pid: for readers of the job."""
    return isinstance(worker_id, int) and 0 < worker_id <= PID_MAX


def _text_of(failure: Any) -> str:
    message = getattr(failure, "message", failure)
    if isinstance(message, dict):
        message = message.get("message", "")
    return str(message)
