"""Ends a job for all of its nodes."""

from __future__ import annotations

from rallypoint.client import RallypointError
from rallypoint.elastic.rendezvous.api import RendezvousConnectionError
from rallypoint.wire.access import Access
from rallypoint.wire.loading import load_grpc

CLOSE_S_MAX = 30.0
"""torch's close_timeout."""


def cancel_job(coordinator: str, job_id: str, access: Access | None = None) -> None:
    """Cancel the current run of a job; nothing happens if there is none.

    Args:
        coordinator: host:port, or those of several with commas in between.
        job_id: the job.
        access: how to prove who this is; None: as the environment says.

    Raises:
        RendezvousConnectionError: the coordinator does not answer.
    """
    load_grpc()  # before the client imports it: this program may launch by fork
    from rallypoint.client import Client
    from rallypoint.client.errors import UnknownJob

    with Client(coordinator, limit_s=CLOSE_S_MAX, access=access) as client:
        try:
            client.cancel_job(job_id, reason="the rendezvous was closed")
        except UnknownJob:
            pass
        except RallypointError as error:
            raise RendezvousConnectionError(f"cannot close job {job_id}: {error}") from error
