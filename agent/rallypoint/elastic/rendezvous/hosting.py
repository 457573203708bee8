"""Which node hosts the coordinator of a job, where a back end of torch has a node host a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rallypoint.agent.hosting.decision import Hosting, find_shared_job_id
from rallypoint.elastic.rendezvous.api import RendezvousParameters

if TYPE_CHECKING:
    from rallypoint.agent.launch.options import JobOptions

C10D_PORT = 29_400
"""torch's default for the port of an endpoint of c10d."""
BACKENDS = ("c10d", "static")
"""Those that need nothing to be started before. The others have a server outside of the job."""


def find_job_id(coordinator: str | None, backend: str) -> str | None:
    """Return the name of a job that was given none, the same on all its nodes; None: there is none.

    Args:
        coordinator: host:port, or several with commas in between; None: a built-in one.
        backend: of the rendezvous.
    """
    hosted = _find_hosted(coordinator, backend)
    return find_shared_job_id(
        None if hosted is None else int(hosted.rpartition(":")[2]), os.environ
    )


def _find_hosted(coordinator: str | None, backend: str) -> str | None:
    if coordinator is None or "," in coordinator or backend not in BACKENDS:
        return None
    return coordinator


def find_hosting(
    coordinator: str | None, params: RendezvousParameters, options: JobOptions
) -> Hosting | None:
    """Return how the nodes host their coordinator; None: it was started before, or is built in.

    Args:
        coordinator: host:port, or several with commas in between; None: a built-in one.
        params: of the rendezvous.
        options: that its parameters hold.
    """
    endpoint = _find_hosted(coordinator, params.backend)
    if endpoint is None:
        return None
    chosen = options.is_host
    if chosen is None and params.backend == "static" and options.rank is not None:
        chosen = options.rank == 0
    return Hosting(
        endpoint=endpoint,
        is_chosen=chosen,
        unused_ms=options.join_timeout,
        window_ms=None if options.fence_after else 0,
    )
