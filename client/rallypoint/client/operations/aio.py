"""What operators change, for asyncio."""

from __future__ import annotations

from rallypoint.client.aio_transport import Transport
from rallypoint.client.calls import operations
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2


class AsyncOperations:
    """The part of the client that changes jobs and nodes. Every call counts once."""

    _transport: Transport

    # --- Jobs -------------------------------------------------------------------------------------

    async def create_job(
        self, job_id: str, spec: job_pb2.JobSpec, *, timeout_s: float | None = None
    ) -> jobs_pb2.CreateJobResponse:
        """Fix the specification of a job's next run before its first agent comes."""
        return await self._transport.run(operations.create_job(job_id, spec), timeout_s)

    async def cancel_job(
        self,
        job_id: str,
        *,
        run: int = 0,
        reason: str = "",
        give_up_silent_nodes: bool = False,
        timeout_s: float | None = None,
    ) -> jobs_pb2.CancelJobResponse:
        """End a run; 0: the latest. Its workers are stopped, and its agents exit.

        With `give_up_silent_nodes` nodes that do not answer count as lost at once.
        """
        call = operations.cancel_job(job_id, run, reason, give_up_silent_nodes=give_up_silent_nodes)
        return await self._transport.run(call, timeout_s)

    async def restart_job(
        self, job_id: str, *, round: int = 0, reason: str = "", timeout_s: float | None = None
    ) -> jobs_pb2.RestartJobResponse:
        """Stop a round and begin another one, without charging a restart; 0: whichever runs."""
        return await self._transport.run(operations.restart_job(job_id, round, reason), timeout_s)

    async def update_job(
        self,
        job_id: str,
        update: jobs_pb2.JobUpdate,
        *,
        revision: int = 0,
        reason: str = "",
        require_nodes: bool = False,
        timeout_s: float | None = None,
    ) -> jobs_pb2.UpdateJobResponse:
        """Change what is set in `update`, if no operator has changed it since `revision`.

        With `require_nodes` it stops no round to wait for nodes that are not there: `Refused`.
        """
        call = operations.update_job(job_id, update, revision, reason, require_nodes=require_nodes)
        return await self._transport.run(call, timeout_s)

    async def delete_job(
        self, job_id: str, *, run: int = 0, timeout_s: float | None = None
    ) -> jobs_pb2.DeleteJobResponse:
        """Forget a job that has ended. While its agents leave, it is tried again."""
        return await self._transport.run(operations.delete_job(job_id, run), timeout_s)

    # --- Nodes ------------------------------------------------------------------------------------

    async def drain_node(
        self,
        job_id: str,
        node_name: str,
        *,
        drain_timeout_s: float,
        reason: str = "",
        timeout_s: float | None = None,
    ) -> nodes_pb2.DrainNodeResponse:
        """Ask a node to leave; workers that still run are stopped after `drain_timeout_s`."""
        call = operations.drain_node(job_id, node_name, drain_timeout_s, reason)
        return await self._transport.run(call, timeout_s)

    async def cordon_node(
        self, job_id: str, node_name: str, *, reason: str = "", timeout_s: float | None = None
    ) -> nodes_pb2.CordonNodeResponse:
        """Exclude a node from later rounds."""
        return await self._transport.run(
            operations.cordon_node(job_id, node_name, reason), timeout_s
        )

    async def uncordon_node(
        self, job_id: str, node_name: str, *, reason: str = "", timeout_s: float | None = None
    ) -> nodes_pb2.UncordonNodeResponse:
        """Let a node into later rounds again."""
        call = operations.uncordon_node(job_id, node_name, reason)
        return await self._transport.run(call, timeout_s)
