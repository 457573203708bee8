"""The asyncio client: a method for each RPC of the coordinator.

Answers are the messages of the contract, `rallypoint.v1`. Times are in seconds. Without a
`timeout_s` a call may take as long as the client allows. Every method raises a `RallypointError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rallypoint.client.aio_lists import Pages, Watch
from rallypoint.client.aio_transport import Transport
from rallypoint.client.attempts import ANSWER_S, LIMIT_S
from rallypoint.client.calls import (
    barriers,
    coordinator,
    events,
    evidence,
    jobs,
    keys,
    operations,
    workers,
)
from rallypoint.client.known import Known
from rallypoint.client.values import Scope
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import evidence_service_pb2 as evidence_pb2
from rallypoint.v1 import job_pb2, node_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2
from rallypoint.v1 import worker_service_pb2 as worker_pb2
from rallypoint.wire.access import Access


class AsyncClient:
    """The services of one coordinator, or of several that share a store, in one event loop."""

    def __init__(
        self,
        target: str,
        *,
        token: str = "",
        epoch: int = 0,
        limit_s: float = LIMIT_S,
        access: Access | None = None,
    ) -> None:
        """Connect at the first call.

        Args:
            target: host:port of the coordinator, or of several with commas in between;
                RALLYPOINT_COORDINATOR in a worker.
            token: RALLYPOINT_WORKER_TOKEN, for barriers and keys; empty: none.
            epoch: RALLYPOINT_EPOCH; 0: not known.
            limit_s: longest call, and longest outage of a watch.
            access: TLS, a certificate and a token; None: what RALLYPOINT_TLS and the other
                variables say.

        Raises:
            ValueError: one of several addresses is not `host[:port]`, or a file is of no use.
        """
        self._transport = Transport(target, token, limit_s, access)
        self._known = Known(epoch)

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """End all calls."""
        await self._transport.close()

    # --- The coordinator --------------------------------------------------------------------------

    async def get_coordinator(
        self, *, timeout_s: float | None = None
    ) -> coordinator_pb2.GetCoordinatorResponse:
        """Return what the coordinator is and how busy it is."""
        return await self._transport.run(coordinator.get_coordinator(), timeout_s)

    # --- Jobs -------------------------------------------------------------------------------------

    async def get_job(
        self,
        job_id: str,
        *,
        view: job_pb2.JobView.ValueType = job_pb2.JOB_VIEW_FULL,
        timeout_s: float | None = None,
    ) -> jobs_pb2.GetJobResponse:
        """Return a job."""
        return await self._transport.run(jobs.get_job(job_id, view), timeout_s)

    def list_jobs(
        self,
        *,
        phases: Iterable[job_pb2.JobPhase.ValueType] = (),
        outcomes: Iterable[job_pb2.Outcome.ValueType] = (),
        prefix: str = "",
        order: jobs_pb2.JobOrder.ValueType = jobs_pb2.JOB_ORDER_JOB_ID,
        page_size: int = 0,
    ) -> Pages[job_pb2.JobSummary]:
        """Return the jobs in one of these phases, with one of these outcomes, and with this prefix.

        To follow them from there on, watch after the revision of the first page, or after its
        position with several coordinators.
        """
        listing = jobs.list_jobs(phases, outcomes, prefix, order, page_size)
        return Pages(self._transport, listing)

    def list_runs(self, job_id: str, *, page_size: int = 0) -> Pages[job_pb2.RunSummary]:
        """Return the runs of a job, the latest first."""
        return Pages(self._transport, jobs.list_runs(job_id, page_size))

    def list_rounds(
        self, job_id: str, *, run: int = 0, page_size: int = 0
    ) -> Pages[job_pb2.RoundSummary]:
        """Return the rounds of a job that have ended, the latest first; of one run, or of all."""
        return Pages(self._transport, jobs.list_rounds(job_id, run, page_size))

    def watch_job(
        self,
        job_id: str,
        *,
        view: job_pb2.JobView.ValueType = job_pb2.JOB_VIEW_FULL,
        after: int = 0,
        across_runs: bool = False,
    ) -> Watch[jobs_pb2.WatchJobResponse]:
        """Return the job now and after every change.

        Args:
            job_id: the job.
            view: how much of it.
            after: the revision that is known; the first answer waits until there is a later one.
            across_runs: also wait for a job that does not exist, and follow its later runs.
                Otherwise the watch ends with the run.
        """
        following = jobs.watch_job(job_id, view, after, across_runs=across_runs)
        return Watch(self._transport, following)

    def watch_jobs(
        self, prefix: str = "", *, after: int | str = 0
    ) -> Watch[jobs_pb2.WatchJobsResponse]:
        """Return the jobs with a prefix that have changed, and those that were deleted.

        Args:
            prefix: what their ids begin with; empty: all jobs.
            after: a revision, or a position of several coordinators, after which to begin; 0:
                every job is returned first.

        Raises, when it is read:
            RevisionCompacted: when deletions since then are not remembered, such as after a
                coordinator without memory has started. List the jobs, and watch from there.
            RallypointError: when it fails otherwise.
        """
        return Watch(self._transport, jobs.watch_jobs(prefix, after))

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

    # --- Evidence ---------------------------------------------------------------------------------

    async def take_evidence(
        self, job_id: str, *, ranks: Iterable[int] = (), timeout_s: float | None = None
    ) -> evidence_pb2.TakeEvidenceResponse:
        """Find out what the workers of a job do; `ranks` are those to return whole."""
        return await self._transport.run(evidence.take_evidence(job_id, ranks), timeout_s)

    async def get_evidence(
        self, job_id: str, *, ranks: Iterable[int] = (), timeout_s: float | None = None
    ) -> evidence_pb2.GetEvidenceResponse:
        """Return the evidence that was taken last; `ranks` are those to return whole."""
        return await self._transport.run(evidence.get_evidence(job_id, ranks), timeout_s)

    # --- Nodes ------------------------------------------------------------------------------------

    async def get_node(
        self, job_id: str, node_name: str, *, timeout_s: float | None = None
    ) -> nodes_pb2.GetNodeResponse:
        """Return a node."""
        return await self._transport.run(jobs.get_node(job_id, node_name), timeout_s)

    def list_nodes(self, job_id: str, *, page_size: int = 0) -> Pages[node_pb2.Node]:
        """Return the nodes of a job, in order of arrival."""
        return Pages(self._transport, jobs.list_nodes(job_id, page_size))

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

    # --- Events -----------------------------------------------------------------------------------

    def list_events(
        self,
        job_id: str = "",
        *,
        kinds: Iterable[events_pb2.EventKind.ValueType] = (),
        after: int | str = 0,
        page_size: int = 0,
    ) -> Pages[events_pb2.Event]:
        """Return events, the oldest first.

        Args:
            job_id: the job, which need not exist any more; empty: all jobs.
            kinds: only these; empty: all.
            after: a sequence, or a position, after which to begin; 0: the oldest that is kept.
            page_size: most events of a page; 0: as many as possible.

        Raises, when it is read:
            EventsCompacted: when events after that are lost.
            RallypointError: when it fails otherwise.
        """
        return Pages(self._transport, events.list_events(job_id, kinds, after, page_size))

    def watch_events(
        self,
        job_id: str = "",
        *,
        kinds: Iterable[events_pb2.EventKind.ValueType] = (),
        after: int | str | None = None,
    ) -> Watch[events_pb2.Event]:
        """Return every event, once and in order.

        Args:
            job_id: the job, which need not exist; empty: all jobs.
            kinds: only these; empty: all.
            after: a sequence, or a position, after which to begin; 0: the oldest that is kept;
                None: now.

        Raises, when it is read:
            EventsCompacted: when events after that are lost.
            RallypointError: when it fails otherwise.
        """
        return Watch(self._transport, events.watch_events(job_id, kinds, after))

    # --- Workers ----------------------------------------------------------------------------------

    async def report_progress(
        self, job_id: str, step: int, *, timeout_s: float | None = None
    ) -> worker_pb2.ReportProgressResponse:
        """Report that training has reached a step, counted over all rounds from 1 on."""
        return await self._transport.run(workers.report_progress(job_id, step), timeout_s)

    # --- Barriers ---------------------------------------------------------------------------------

    async def arrive(
        self,
        job_id: str,
        name: str,
        participant: barrier_pb2.Participant,
        *,
        timeout_s: float,
        expected: barrier_pb2.Expected | None = None,
        payload: bytes = b"",
        scope: Scope = Scope.ROUND,
        generation: int = 0,
    ) -> barrier_pb2.ArriveResponse:
        """Wait at a barrier until everyone has arrived, for `timeout_s` at most.

        Raises:
            BarrierBroken: when a participant is lost, the round stops or the time is over.
            Forgotten: when the coordinator has started again without its memory.
            RallypointError: when it fails otherwise.
        """
        call = barriers.arrive(
            self._known,
            job_id,
            name,
            participant,
            expected=expected,
            payload=payload,
            scope=scope,
            generation=generation,
        )
        return await self._transport.run(call, timeout_s + ANSWER_S)

    def list_barriers(self, job_id: str, *, page_size: int = 0) -> Pages[barrier_pb2.Barrier]:
        """Return the open barriers of a job, by scope and name."""
        return Pages(self._transport, barriers.list_barriers(job_id, page_size))

    # --- Keys -------------------------------------------------------------------------------------

    async def get_keys(
        self,
        job_id: str,
        wanted: Iterable[str],
        *,
        wait_s: float = 0.0,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.GetKeysResponse:
        """Return the keys that exist; with `wait_s` wait so long until all do.

        Raises:
            KeysMissing: when they did not exist in time.
            RallypointError: when it fails otherwise.
        """
        call = keys.get_keys(self._known, job_id, wanted, scope, waits=wait_s > 0)
        return await self._transport.run(call, wait_s + ANSWER_S if wait_s > 0 else timeout_s)

    async def put_key(
        self,
        job_id: str,
        key: str,
        value: bytes,
        *,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.KeyWritten:
        """Set a key."""
        call = keys.put_key(self._known, job_id, key, value, scope)
        answer = await self._transport.run(call, timeout_s)
        return answer.results[0]

    async def add_to_key(
        self,
        job_id: str,
        key: str,
        amount: int,
        *,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.KeyWritten:
        """Add to the number that a key holds."""
        call = keys.add_to_key(self._known, job_id, key, amount, scope)
        answer = await self._transport.run(call, timeout_s)
        return answer.results[0]

    async def compare_and_set_key(
        self,
        job_id: str,
        key: str,
        value: bytes,
        *,
        expected: keys_pb2.KeyCondition,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.KeyWritten:
        """Set a key if it is as expected; the answer says whether it was."""
        call = keys.compare_and_set_key(self._known, job_id, key, value, expected, scope)
        answer = await self._transport.run(call, timeout_s)
        return answer.results[0]

    async def delete_key(
        self,
        job_id: str,
        key: str,
        *,
        expected: keys_pb2.KeyCondition | None = None,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.KeyWritten:
        """Delete a key if it exists, and is as expected."""
        call = keys.delete_key(self._known, job_id, key, expected, scope)
        answer = await self._transport.run(call, timeout_s)
        return answer.results[0]

    async def write_keys(
        self,
        job_id: str,
        writes: Iterable[keys_pb2.KeyWrite],
        *,
        scope: Scope = Scope.ROUND,
        timeout_s: float | None = None,
    ) -> keys_pb2.WriteKeysResponse:
        """Make several changes in order, all or none."""
        call = keys.write_keys(self._known, job_id, writes, scope)
        return await self._transport.run(call, timeout_s)

    def list_keys(
        self,
        job_id: str,
        prefix: str = "",
        *,
        keys_only: bool = False,
        scope: Scope = Scope.ROUND,
        page_size: int = 0,
    ) -> Pages[keys_pb2.KeyValue]:
        """Return the keys with a prefix, by their bytes.

        To follow them from there on, watch after the header of the first page.
        """
        listing = keys.list_keys(
            self._known, job_id, prefix, scope, keys_only=keys_only, page_size=page_size
        )
        return Pages(self._transport, listing)

    def watch_keys(
        self,
        job_id: str,
        prefix: str = "",
        *,
        after: keys_pb2.KeyValueHeader | None = None,
        scope: Scope = Scope.ROUND,
    ) -> Watch[keys_pb2.KeyEvent]:
        """Return every change of the keys with a prefix, once and in order.

        Args:
            job_id: the job.
            prefix: what the keys begin with; empty: all keys.
            after: header of an earlier answer, after which to begin; None: now.
            scope: what the keys belong to.

        Raises, when it is read:
            KeysCompacted: when changes since then are not remembered.
            RallypointError: when it fails otherwise.
        """
        following = keys.watch_keys(self._known, job_id, prefix, scope, after)
        return Watch(self._transport, following)
