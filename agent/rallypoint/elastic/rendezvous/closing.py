"""Ends a job for all of its nodes."""

from __future__ import annotations

from rallypoint.client import Client, RallypointError
from rallypoint.elastic.rendezvous.errors import RendezvousConnectionError

CLOSE_S_MAX = 30.0
"""torch's close_timeout."""


def cancel_job(coordinator: str, job_id: str) -> None:
    """Cancel the current run of a job; nothing happens if there is none.

    Raises:
        RendezvousConnectionError: the coordinator does not answer.
    """
    from rallypoint.client.errors import UnknownJob

    with Client(coordinator, limit_s=CLOSE_S_MAX) as client:
        try:
            client.cancel_job(job_id, reason="the rendezvous was closed")
        except UnknownJob:
            pass
        except RallypointError as error:
            raise RendezvousConnectionError(f"cannot close job {job_id}: {error}") from error
