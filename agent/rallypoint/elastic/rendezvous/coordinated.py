"""The handler of this package: a description of a job, and the seat of this node in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rallypoint.agent.embedded.python_log import use_python_log
from rallypoint.agent.launch.notes import log_notes
from rallypoint.agent.launch.options import (
    PYTHON_KEYS,
    JobOptions,
    list_key_notes,
    read_config,
)
from rallypoint.base.values import BadValue
from rallypoint.elastic.rendezvous.api import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from rallypoint.elastic.rendezvous.hosting import find_meeting
from rallypoint.wire.loading import load_grpc

if TYPE_CHECKING:
    from rallypoint.elastic.node.seat import ForeignSeat, Seat


class CoordinatedRendezvous(RendezvousHandler):
    """A rendezvous that a coordinator decides.

    An agent takes the seat of the node when it runs. Without an agent, the first `next_rendezvous`
    takes it, for a node with one worker.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        """Check the description; the network is not used yet.

        Raises:
            ValueError: an option is wrong, or several nodes have no coordinator or no name for
                their job.
        """
        use_python_log()
        self.params = params
        self.options = _read_options(params)
        self.meeting = find_meeting(params, self.options)
        self._seat: Seat | None = None
        self._own: ForeignSeat | None = None
        """The seat that this handler has taken itself."""

    def take_seat(self, seat: Seat | None) -> None:
        """Serve the calls from this seat; None: an agent has left it."""
        self._seat = seat

    def get_backend(self) -> str:
        """Return the name of the backend that was asked for."""
        return self.params.backend

    def get_run_id(self) -> str:
        """Return the name of the job."""
        return self.params.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until a round begins that includes this node, and return its place.

        Whatever ran here for the round before counts as stopped.
        """
        from rallypoint.elastic.rendezvous.round_store import RoundStore

        if self._seat is None:
            self._own = self._seat = self._take_own_seat()
        seat = self._seat
        order = seat.next_order()
        if self._own is seat:
            self._own.began((os.getpid(),))  # the program itself is the worker
        header, rank = order.header, order.assignment.group_rank
        node = seat.node
        store = RoundStore(node.coordinator, node.job_id, order, node.access)
        info = RendezvousStoreInfo(header.master_addr, header.master_port)
        return RendezvousInfo(store, rank, header.group_world_size, info)

    def _take_own_seat(self) -> ForeignSeat:
        load_grpc()
        from rallypoint.elastic.node.seat import ForeignSeat
        from rallypoint.elastic.rendezvous.planning import plan_node

        seat = ForeignSeat(plan_node(self))
        seat.start()
        return seat

    def is_closed(self) -> bool:
        """Return whether this node knows that no further round begins here."""
        return self._seat is not None and self._seat.view.is_ending

    def set_closed(self) -> None:
        """Cancel the job: its workers are stopped on all nodes.

        Raises:
            RendezvousConnectionError: the coordinator cannot be reached.
        """
        from rallypoint.elastic.rendezvous.closing import cancel_job

        seat = self._seat
        target = self.meeting.coordinator if seat is None else seat.node.coordinator
        if target is not None:
            cancel_job(target, self.params.run_id, None if seat is None else seat.node.access)

    def num_nodes_waiting(self) -> int:
        """Return 1 while the round of this node has to end, so that another one begins; else 0."""
        seat = self._seat
        return int(seat is not None and seat.has_begun and not seat.is_wanted)

    def shutdown(self) -> bool:
        """Leave the job, if this node has not left it yet."""
        seat, self._seat = self._seat, None
        if seat is not None:
            seat.close()
        return True


def _read_options(params: RendezvousParameters) -> JobOptions:
    """Return the options of the job; log the keys without an effect.

    Raises:
        ValueError: a value does not fit its key.
    """
    try:
        options = JobOptions(**read_config(params.config, PYTHON_KEYS))
    except BadValue as bad:
        raise ValueError(f"rendezvous option {bad}") from None
    log_notes(list_key_notes(params.config, PYTHON_KEYS))
    return options
