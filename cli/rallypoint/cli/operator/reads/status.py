"""`rallypoint status`: one job, once or live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, option
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from rallypoint.cli.operator.reads.left import LeftJobs
    from rallypoint.client import Client

NODES_SHOWN = 20
ROUNDS_SHOWN = 5


@Command
def status(
    invocation: Invocation,
    job: Job,
    is_watch: Annotated[
        bool, option("--watch", "-w", help="show every change until the run has ended")
    ] = False,
    shows_all: Annotated[
        bool, option("--all", help=f"show every node, not only {NODES_SHOWN}")
    ] = False,
    rounds: Annotated[
        int, option("--rounds", metavar="N", min=0, help="how many ended rounds to show")
    ] = ROUNDS_SHOWN,
) -> None:
    """Show a job: its nodes and ranks, its rounds, what it waits for, and where the time went.

    With --watch the view is live on a terminal; elsewhere it prints a line for each change, or with
    --output json an object.
    """
    from rallypoint.cli.operator.reads.left import LeftJobs
    from rallypoint.cli.operator.reads.snapshot import take_snapshot
    from rallypoint.cli.operator.views.status import Extent, render_status

    extent = Extent(nodes=None if shows_all else NODES_SHOWN, rounds=rounds)
    reader = invocation.reader(job)
    if is_watch and not isinstance(reader, LeftJobs):
        from rallypoint.cli.operator.reads.live import watch

        watch(invocation, job, extent)
        return
    if invocation.output.is_json:
        invocation.output.print_json(_read_whole(reader, job))
        return
    found = take_snapshot(reader, job, is_whole=shows_all)
    invocation.output.print(render_status(found.job, found.nodes, extent))


def _read_whole(client: Client | LeftJobs, job_id: str) -> job_pb2.Job:
    """Return a job with all its nodes."""
    from rallypoint.cli.operator.reads.left import LeftJobs

    job = client.get_job(job_id).job
    if not isinstance(client, LeftJobs) and job.node_count > len(
        job.nodes
    ):  # more than a message holds
        nodes = list(client.list_nodes(job_id))
        del job.nodes[:]
        job.nodes.extend(nodes)
    return job
