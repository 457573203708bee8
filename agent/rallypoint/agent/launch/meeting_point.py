"""Where the nodes of a job meet: at which coordinator, which of them hosts it, and in which job.

Every way to launch reads its own names for that. What follows from them is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.agent.hosting.decision import Hosting
from rallypoint.base import worker_variables
from rallypoint.base.addresses import have_common_endpoint

if TYPE_CHECKING:
    from rallypoint.agent.launch.options import JobOptions
    from rallypoint.wire.access import Access

C10D_PORT = 29_400
"""torch's default for the port of an endpoint of c10d."""
OPERATORS_VARIABLE = worker_variables.COORDINATOR
"""It names the coordinator that the operator's commands ask, and that of a worker. No agent reads
it: what an operator looks at must not change where a job runs, nor a worker join its own agent's
coordinator because it starts an agent."""


class MeetingPoint(Struct, frozen=True):
    """The coordinator and the job of a node."""

    coordinator: str | None
    """host:port, or those of several with commas in between; None: one built into this agent."""
    hosting: Hosting | None
    """The same place, if a node of the job hosts the coordinator; None: it was started before."""
    job_id: str
    """1 to 255 bytes."""

    def find_own_job(self, environment: Mapping[str, str]) -> str:
        """Return why this process cannot join, if it is a worker of the job; else "".

        Agent and worker would wait for each other.
        """
        if self.coordinator is None or environment.get(worker_variables.JOB_ID) != self.job_id:
            return ""
        around = environment.get(OPERATORS_VARIABLE, "")
        # Nodes may spell the host of an endpoint differently.
        is_same = self.hosting is not None and around.endswith(f":{self.hosting.port}")
        if is_same or have_common_endpoint(self.coordinator, around):
            return f"this process is already a worker of job {self.job_id}"
        return ""

    def find_master_port(self, port: int, rank: int | None, *, is_alone: bool) -> int:
        """Return the port that this node offers for rank 0's store; 0: a free one in every round.

        Args:
            port: that was asked for; 0: none.
            rank: number that this node asks for; None: any.
            is_alone: the job has a single node.
        """
        may_be_first = is_alone or rank in (None, 0)
        is_taken = self.hosting is not None and port == self.hosting.port  # by the coordinator
        return port if may_be_first and not is_taken else 0

    def prove(self, read: Callable[[], Access], environment: Mapping[str, str]) -> Access:
        """Return how the agent proves who it is; a built-in coordinator asks for nothing.

        Args:
            read: returns what was given for that.
            environment: may have the secret of the job.

        Raises:
            AccessFailed: what was given is wrong.
        """
        from rallypoint.wire.access import PLAIN
        from rallypoint.wire.job_secret import with_job_secret
        from rallypoint.wire.local_token import with_local_token

        if self.coordinator is None:
            return PLAIN
        if self.hosting is not None:
            return with_job_secret(read(), environment)
        return with_local_token(read(), self.coordinator)


def host_at(endpoint: str, options: JobOptions, *, chosen: bool | None) -> Hosting:
    """Return how the nodes of a job host their coordinator.

    Args:
        endpoint: host:port.
        options: of the job; `is_host` wins.
        chosen: whether this node does, by its rank; None: the endpoint says.
    """
    return Hosting(
        endpoint=endpoint,
        is_chosen=chosen if options.is_host is None else options.is_host,
        unused_ms=options.join_timeout,
        # A new coordinator usually waits for agents that hold a round of an earlier one. Here they
        # belong to the same job: one that comes late is stopped, and takes part in the next round.
        # Only fences rely on that wait.
        window_ms=None if options.fence_after else 0,
    )
