"""The handler of this package: a description of a job, and the seat of this node in it.

It says where the nodes meet, by torch's names for that, and what this node brings into the job.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.agent.hosting.decision import find_shared_job_id
from rallypoint.agent.launch.meeting_point import C10D_PORT, MeetingPoint, host_at
from rallypoint.agent.launch.notes import log_notes
from rallypoint.agent.launch.options import (
    PYTHON_KEYS,
    JobOptions,
    list_key_notes,
    read_config,
)
from rallypoint.base.addresses import parse_endpoint, parse_endpoints
from rallypoint.base.values import BadValue
from rallypoint.client.errors import RallypointError, UnknownJob
from rallypoint.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from rallypoint.embedded.python_log import use_python_log
from rallypoint.wire.loading import load_grpc

if TYPE_CHECKING:
    from rallypoint.agent.launch.plan import LaunchPlan
    from rallypoint.agent.round.environ import Launch
    from rallypoint.elastic.node.seat import ForeignSeat, Seat
    from rallypoint.elastic.values import WorkerSpec

BACKENDS = ("c10d", "static")
"""Those that need nothing to be started before. The others have a server outside of the job."""
CLOSE_S_MAX = 30.0
"""torch's close_timeout."""


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
        self.meeting = find_meeting_point(params, self.options)
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
        from rallypoint.elastic.node.round_store import RoundStore

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

        seat = ForeignSeat(self.plan())
        seat.start()
        return seat

    def plan(self, spec: WorkerSpec | None = None) -> LaunchPlan:
        """Return what this node brings into the job, without what a launch of local workers needs.

        Args:
            spec: the workers; None: the program itself is the only one.
        """
        from rallypoint.agent.launch.plan import LaunchPlan

        params, options, meeting = self.params, self.options, self.meeting
        plan = LaunchPlan(
            meeting=meeting,
            options=options,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            address=params.local_addr,
            environment=dict(os.environ),
        )
        if spec is None:
            return plan
        is_alone = params.max_nodes == 1
        return replace(
            plan,
            options=replace(options, max_restarts=spec.max_restarts),
            workers=spec.local_world_size,
            role=spec.role,
            address=spec.local_addr or params.local_addr,
            master_port=meeting.find_master_port(
                spec.master_port or 0, options.rank, is_alone=is_alone
            ),
            title=spec.get_entrypoint_name(),
        )

    def is_closed(self) -> bool:
        """Return whether this node knows that no further round begins here."""
        return self._seat is not None and self._seat.view.is_ending

    def set_closed(self) -> None:
        """Cancel the job: its workers are stopped on all nodes.

        Raises:
            RendezvousConnectionError: the coordinator cannot be reached.
        """
        seat, job_id = self._seat, self.params.run_id
        target = self.meeting.coordinator if seat is None else seat.node.coordinator
        if target is None:
            return
        load_grpc()  # before the client imports it: this program may launch by fork
        from rallypoint.client import Client

        access = None if seat is None else seat.node.access
        with Client(target, limit_s=CLOSE_S_MAX, access=access) as client:
            try:
                client.cancel_job(job_id, reason="the rendezvous was closed")
            except UnknownJob:
                pass
            except RallypointError as error:
                text = f"cannot close job {job_id}: {error}"
                raise RendezvousConnectionError(text) from error

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


def find_meeting_point(params: RendezvousParameters, options: JobOptions) -> MeetingPoint:
    """Return the coordinator and the job that parameters mean.

    Raises:
        ValueError: several nodes have no coordinator, the job has no name, or this process is one
            of its workers.
    """
    coordinator = find_coordinator(params)
    if not params.run_id:
        raise ValueError("a job needs a name: give every node the same run_id")
    endpoint, rank = _find_hosted(coordinator, params.backend), options.rank
    chosen = rank == 0 if params.backend == "static" and rank is not None else None
    hosting = None if endpoint is None else host_at(endpoint, options, chosen=chosen)
    meeting = MeetingPoint(coordinator, hosting, params.run_id)
    if own := meeting.find_own_job(os.environ):
        raise ValueError(f"{own}: use another run_id")
    return meeting


def find_job_id(params: RendezvousParameters) -> str | None:
    """Return the name of a job that was given none, the same on all its nodes; None: there is none.

    Raises:
        ValueError: it has no coordinator.
    """
    hosted = _find_hosted(find_coordinator(params), params.backend)
    port = None if hosted is None else int(hosted.rpartition(":")[2])
    return find_shared_job_id(port, os.environ)


def _find_hosted(coordinator: str | None, backend: str) -> str | None:
    if coordinator is None or "," in coordinator or backend not in BACKENDS:
        return None
    return coordinator


def find_coordinator(params: RendezvousParameters) -> str | None:
    """Return host:port of the coordinators that an endpoint means; None: a built-in one.

    Raises:
        ValueError: several nodes have no coordinator, or the endpoint is none.
    """
    endpoint, is_alone = params.endpoint.strip(), params.max_nodes == 1
    # torch's back end "static" has rank 0's store at its endpoint, and port 0 means any free port.
    if is_alone and (not endpoint or endpoint.endswith(":0") or params.backend == "static"):
        return None
    if not endpoint:
        raise ValueError(
            "a job of several nodes needs a coordinator: set rdzv_endpoint to its host"
        )
    if params.backend == "c10d" and "," not in endpoint:
        endpoint = parse_endpoint(endpoint, C10D_PORT) or endpoint
    try:
        return parse_endpoints(endpoint)
    except ValueError as error:
        raise ValueError(f"rdzv_endpoint {error} of a coordinator") from None


def check_preload(options: JobOptions, launch: Launch | None) -> None:
    """Refuse to preload for workers that no process can fork.

    Args:
        options: of the job.
        launch: how each worker starts; None: the program starts them itself.

    Raises:
        ValueError: with what to do.
    """
    if options.preloaded() is None:
        return
    function = None if launch is None else launch.function
    if function is None:
        text = "preload: only functions can be forked here; for a script, use rallypoint agent"
        raise ValueError(text)
    if function.is_forked:
        text = 'preload: a forked worker is a copy, with its imports; use start_method="spawn"'
        raise ValueError(text)
