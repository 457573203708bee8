"""A job with the nodes that its status shows. The time for that does not grow with the job.

Of a small job, one message has everything. The nodes of a larger one are read in pages, because
those to show are chosen among all. Of a very large one, the job's facts name the nodes that need
attention; those are read one by one, and a page of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.cli.operator.reads.left import LeftJobs
from rallypoint.client.errors import UnknownNode
from rallypoint.v1 import job_pb2, node_pb2

if TYPE_CHECKING:
    from rallypoint.client import Client

WHOLE_MAX = 256
"""Nodes of a job that is read in one message, of about 60 KB."""
ORDERED_MAX = 1_024
"""Nodes of a job that are all read, of about 0.3 MB: coordinators list them in order of arrival."""
NAMED_MAX = 16
"""Nodes that are read one by one: as many as a coordinator names in what a job waits for."""
PAGE = 32
"""Other nodes of a large job: as many as fit on a screen."""


class Snapshot(Struct, frozen=True):
    """A job at one moment."""

    job: job_pb2.Job
    nodes: Sequence[node_pb2.Node]
    """All of them, or those that are worth showing."""


def take_snapshot(client: Client | LeftJobs, job_id: str, *, is_whole: bool = False) -> Snapshot:
    """Read a job; `is_whole`: with all nodes, however many.

    Raises:
        RallypointError: there is no such job, or it may not be read.
    """
    job = client.get_job(job_id, view=job_pb2.JOB_VIEW_BASIC).job
    if isinstance(client, LeftJobs):
        return Snapshot(job, job.nodes)
    if job.node_count <= WHOLE_MAX:
        job = client.get_job(job_id).job
        return Snapshot(job, job.nodes)
    if is_whole:
        return Snapshot(job, list(client.list_nodes(job_id)))
    return Snapshot(job, read_some_nodes(client, job))


def choose_view(job: job_pb2.Job) -> job_pb2.JobView.ValueType:
    """Return how much of a job to follow."""
    is_small = job.node_count <= WHOLE_MAX
    return job_pb2.JOB_VIEW_FULL if is_small else job_pb2.JOB_VIEW_BASIC


def read_some_nodes(client: Client, job: job_pb2.Job) -> list[node_pb2.Node]:
    """Return all nodes of a large job, or those of a very large one that need attention."""
    if job.node_count <= ORDERED_MAX:
        return list(client.list_nodes(job.job_id))
    pages = client.list_nodes(job.job_id, page_size=PAGE)
    found = {node.name: node for node in islice(pages, PAGE)}
    for name in islice(dict.fromkeys(_name_urgent(job)), NAMED_MAX):
        if name not in found:
            try:
                found[name] = client.get_node(job.job_id, name).node
            except UnknownNode:
                continue  # it is gone, and among the departures
    return list(found.values())


def _name_urgent(job: job_pb2.Job) -> Iterator[str]:
    yield from (one.name for one in job.waiting.nodes)
    yield from (one.node_name for one in job.health)
    yield from (one.node_name for one in job.notices if one.node_name)
