"""Where the nodes of a job meet, by the names that torch has for that."""

from __future__ import annotations

import os

from rallypoint.agent.hosting.decision import find_shared_job_id
from rallypoint.agent.launch.meeting import C10D_PORT, Meeting, host_at
from rallypoint.agent.launch.options import JobOptions
from rallypoint.base.addresses import parse_endpoint, parse_endpoints
from rallypoint.elastic.rendezvous.api import RendezvousParameters

BACKENDS = ("c10d", "static")
"""Those that need nothing to be started before. The others have a server outside of the job."""


def find_meeting(params: RendezvousParameters, options: JobOptions) -> Meeting:
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
    meeting = Meeting(coordinator, hosting, params.run_id)
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
