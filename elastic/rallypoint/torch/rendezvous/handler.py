"""torchrun's rendezvous at the coordinator: a `RendezvousHandler` that is one node of a job.

An agent in a thread holds the node's session, as node-agent does. torchrun runs the workers, and
asks the handler only this: for the next round, and now and then whether the current one is over
(`num_nodes_waiting`). What the handler can tell it is limited by that; docs/torch.md says how.
"""

from __future__ import annotations

import atexit
import os
import sys
import time

from torch.distributed.elastic.rendezvous import api as torch_api
from torch.distributed.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)

from rallypoint.agent.core.desired import DesiredStandby, RunOrder
from rallypoint.base.log import get_logger
from rallypoint.client.errors import RallypointError
from rallypoint.client.sync import Client
from rallypoint.embedded.agent_thread import AgentGone
from rallypoint.embedded.ended import Ended, EndKind, describe_outcome
from rallypoint.embedded.foreign import ForeignNode
from rallypoint.embedded.python_log import use_python_log
from rallypoint.torch.rendezvous.conf import read_conf
from rallypoint.torch.rendezvous.endings import (
    Farewell,
    find_farewell,
    is_crash_of_spare,
    is_too_early,
)
from rallypoint.torch.rendezvous.errors import to_error
from rallypoint.torch.rendezvous.round_entry import CannotServe, NotFormed, RoundEntry, shares_store

log = get_logger()

LEAVE_S_MAX = 5.0
"""How long the Goodbye of a node may take."""
SERVE_ATTEMPTS_MAX = 3
"""Rounds in a row whose TCPStore cannot listen: another program may have taken a port or two."""
VERDICT_S = 1.0
"""How much longer than the limit a node waits to learn that the coordinator's has passed too."""
STOP_SLACK_S = 10.0
"""How much longer than the others may take to stop a failed node waits for the end of the job."""
RESTARTS = "torchrun restarts its workers after a failure"


class CoordinatorRendezvousHandler(RendezvousHandler):
    """A node of a job at a coordinator; torchrun's threads may share it."""

    def __init__(self, params: RendezvousParameters) -> None:
        """Check the parameters; the first rendezvous connects.

        Raises:
            ValueError: when one is wrong.
        """
        use_python_log()
        self._backend = params.backend
        self._plan = plan = read_conf(params)
        self._endpoint, self._job_id = str(plan.meeting.coordinator), plan.meeting.job_id
        self._access = plan.prove()
        options = plan.options
        self._join_s, self._stop_s = options.join_timeout / 1000, options.shutdown_timeout / 1000
        self._read_s = options.coordinator_timeout_ms / 1000
        self._close_s = options.outcome_timeout / 1000
        self._node: ForeignNode | None = None
        self._entry: RoundEntry | None = None
        self._pid = os.getpid()
        self._was_known: bool | None = None
        """What `shutdown` has returned; None: the handler is in use."""

    # --- what torch asks ---

    def get_backend(self) -> str:
        """Return the name of the back end."""
        return self._backend

    def get_run_id(self) -> str:
        """Return the id of the job."""
        return self._job_id

    @property
    def use_agent_store(self) -> bool:
        """True unless TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: the node of rank 0 hosts a TCPStore."""
        return shares_store()

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for the next round, and return this node's place in it.

        Raises:
            RendezvousClosedError: the job has ended.
            RendezvousTimeoutError: no round was formed within `join_timeout`.
            RendezvousConnectionError: no coordinator answers.
            RendezvousStateError: the coordinator refuses this node.
            RendezvousGracefulExitError: this node is not needed any more.
        """
        self._end_round(RESTARTS)
        self._begin()
        ends_s = time.monotonic() + self._join_s
        unserved = 0
        while True:
            order = self._await_order(ends_s)
            if order is None:  # a spare waits without a limit
                ends_s = time.monotonic() + self._join_s
                continue
            node = self._require_node()
            node.started([os.getpid()])
            self._entry = RoundEntry(node.coordinator, self._job_id, node.node_name, order)
            try:
                left_s = max(0.0, ends_s - time.monotonic())
                return self._entry.enter(left_s, serve_s=self._read_s)
            except NotFormed as error:
                self._end_round(str(error))
                unserved = unserved + 1 if isinstance(error, CannotServe) else 0
                if unserved >= SERVE_ATTEMPTS_MAX:  # the next rounds would fail in the same way
                    raise torch_api.RendezvousStateError(str(error)) from error

    def num_nodes_waiting(self) -> int:
        """Return 1 while the current round has to end, else 0. Never waits.

        torchrun restarts its workers when this is positive. It is not only the arrival of a node:
        also a node that was lost, a failure elsewhere, and the end of the job.
        """
        return 0 if self._node is None or self._node.stop_reason is None else 1

    def is_closed(self) -> bool:
        """Return whether the job has ended, as far as this node knows."""
        if self._node is None:
            return False
        ended = self._node.ended
        if ended is not None:
            return ended.finished is not None or ended.kind is EndKind.CLOSED
        return self._node.is_finishing

    def set_closed(self) -> None:
        """End the job for all its nodes.

        Raises:
            RendezvousConnectionError: no coordinator answers.
            RendezvousStateError: the coordinator refuses.
        """
        if self.is_closed():
            return
        name = "a node" if self._node is None else f"node {self._node.node_name}"
        try:
            self._cancel(f"{name} closed the rendezvous")
        except RallypointError as error:
            is_absent = error.status == "UNAVAILABLE"
            kind = (
                torch_api.RendezvousConnectionError if is_absent else torch_api.RendezvousStateError
            )
            raise kind(f"job {self._job_id} cannot be closed: {error}") from error

    def shutdown(self) -> bool:
        """Report how this node ends, and leave; return whether the coordinator knows it.

        torch calls this at the end, whatever has happened: the exception that is on its way tells
        what. A failure for good ends the job for all nodes.
        """
        error = sys.exc_info()[1]
        if self._node is None or is_too_early(sys._getframe(1)):
            return True
        if self._was_known is not None:
            return self._was_known
        is_known = self._was_known = self._leave(find_farewell(error))
        ended = self._node.ended
        if ended is not None and is_crash_of_spare(error):
            # Without this, torchrun would fail with that AttributeError (pytorch#133380).
            why = describe_outcome(ended, self._job_id) if ended.finished else ended.text
            log.info("node_not_needed", why=why)
            raise SystemExit(0)
        return is_known

    # --- inside ---

    def _begin(self) -> None:
        """Start the agent, unless it runs."""
        ended = None if self._node is None else self._node.ended
        if self._node is not None and (ended is None or ended.finished is not None):
            return  # no other agent would change that
        self._was_known = None
        self._node = ForeignNode(self._plan, counts_workers=False)
        try:
            self._node.start()
        except AgentGone as error:
            raise torch_api.RendezvousStateError(str(error)) from error
        atexit.register(self._leave_at_exit)

    def _require_node(self) -> ForeignNode:
        assert self._node is not None
        return self._node

    def _await_order(self, ends_s: float) -> RunOrder | None:
        """Return the next order, or None when the time of a spare is over."""
        node = self._require_node()
        order: RunOrder | Ended | None
        try:
            order = node.await_order(max(0.0, ends_s - time.monotonic()))
        except TimeoutError:
            desired = node.agent.state.desired
            if isinstance(desired, DesiredStandby) and desired.spare:
                return None
            # The coordinator has the same limit, and its verdict says more.
            order = node.wait_ended(VERDICT_S)
        if order is None:
            why, run_ending = self._describe_wait(), node.run_ending
            node.close("torchrun gave up waiting for a round", LEAVE_S_MAX)
            if run_ending:
                raise torch_api.RendezvousClosedError(run_ending)
            raise torch_api.RendezvousTimeoutError(
                f"job {self._job_id}: no round was formed within {self._join_s:g} s"
                f"{why} (--rdzv-conf join_timeout)"
            )
        if isinstance(order, Ended):
            absence = node.absence
            raise to_error(
                order,
                self._job_id,
                self._endpoint,
                "" if absence is None else absence.why,
            )
        return order

    def _describe_wait(self) -> str:
        """Return what the job waits for, in words; empty when that is not known."""
        node = self._require_node()
        if not node.is_connected:
            why = "" if node.absence is None else f": {node.absence.why}"
            return f"; no coordinator answers at {self._endpoint}{why}"
        with Client(self._endpoint, access=self._access) as client:
            try:
                job = client.get_job(self._job_id, timeout_s=LEAVE_S_MAX).job
            except RallypointError:
                return ""
        return f"; {job.waiting.text}" if job.waiting.text else ""

    def _end_round(self, why: str) -> None:
        """Report that no worker of the current round runs here any more."""
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.close()
        if self._node is not None:
            self._node.stopped(why)

    def _cancel(self, reason: str) -> None:
        with Client(self._endpoint, access=self._access) as client:
            client.cancel_job(self._job_id, reason=reason, timeout_s=self._close_s)

    def _leave(self, farewell: Farewell) -> bool:
        """Report what has become of this node, and end its agent; return whether that is known."""
        atexit.unregister(self._leave_at_exit)
        node = self._require_node()
        if node.ended is not None:
            self._end_round(farewell.text)
            return node.ended.finished is not None
        is_over = not node.round or node.stop_reason is not None
        if farewell.is_failure and farewell.ends_job and is_over:
            self._fail_stopped(farewell)
        elif not farewell.is_leaving and not is_over:
            node.exited(
                0, exit_code=farewell.exit_code, signum=farewell.signum, error=farewell.error
            )
        else:
            if farewell.exit_code == 0 and node.round and self._ends_after(farewell):
                node.join(LEAVE_S_MAX)
                return True
            farewell = farewell.leaving()
        if farewell.is_leaving:
            node.leave(farewell.text)  # first: a node that is ready would get the next round
        self._end_round(farewell.text)
        ended = None if farewell.is_leaving else self._await_outcome(farewell)
        if ended is not None:
            node.join(LEAVE_S_MAX)
            is_known = ended.finished is not None
        else:
            was_connected = node.is_connected
            is_known = node.close(farewell.text, LEAVE_S_MAX) and was_connected
        if not is_known:
            then = "it will count this node as lost"
            log.warning("end_not_reported", why="no coordinator answers", then=then)
        return is_known

    def _ends_after(self, farewell: Farewell) -> bool:
        """Return whether the job ends, after workers that succeeded while their round was stopped.

        A failure elsewhere breaks torch's exit barrier, so it looks like that. A node that left at
        once would be taken for the cause of the stop, and the job would not fail.
        """
        self._end_round(farewell.text)
        try:
            order = self._require_node().await_order(self._close_s)
        except TimeoutError:
            return False
        return isinstance(order, Ended) and order.finished is not None

    def _await_outcome(self, farewell: Farewell) -> Ended | None:
        """Wait for the end of the job; return it, or None when it does not come in time.

        A node that left before that would be taken for the cause, and the job would continue.
        """
        limit_s = self._close_s
        if farewell.is_failure and self._require_node().is_connected:
            limit_s = max(limit_s, self._stop_s + STOP_SLACK_S)
        ended = self._require_node().wait_ended(limit_s)
        if ended is None and farewell.is_failure:
            self._fail_stopped(farewell)
        return ended

    def _fail_stopped(self, farewell: Farewell) -> None:
        """End the job although its round is being stopped for another reason."""
        name = self._require_node().node_name
        try:
            self._cancel(f"node {name} failed: {farewell.text}")
        except RallypointError as error:
            log.warning("job_not_ended", job=self._job_id, why=str(error))

    def _leave_at_exit(self) -> None:
        """Leave the job when torchrun ends without `shutdown`, as after a signal."""
        if os.getpid() == self._pid and self._node is not None:
            self._node.leave("torchrun ends")
            self._end_round("torchrun ends")
            self._node.close("torchrun ends", LEAVE_S_MAX)
