"""BarrierService: a call waits until its generation ends in the journal."""

from __future__ import annotations

import asyncio
import time

from google.rpc.status_pb2 import Status

from rallypoint.server.access.tokens import WorkerTokens, require_worker
from rallypoint.server.api.barriers.messages import (
    broken_status,
    released_message,
    to_arrive,
    to_key,
)
from rallypoint.server.api.barriers.openings import Openings, is_large
from rallypoint.server.api.barriers.reading import read_barriers
from rallypoint.server.api.barriers.waits import CALLS_PER_PARTICIPANT_MAX, BarrierWaits, Wait
from rallypoint.server.contract.calls import CallRefused, Context, LimitExceeded, Source, find_job
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import to_page
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind
from rallypoint.server.core.model.barrier import BarrierKey, Ended, Expected
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc


class BarrierService(barrier_grpc.BarrierServiceServicer):
    """Serves workers, and readers of barriers."""

    def __init__(
        self,
        coordinator: Coordinator,
        waits: BarrierWaits,
        state: State,
        tokens: WorkerTokens,
        pace: Pace,
    ) -> None:
        """Serve the barriers of `coordinator`.

        Args:
            coordinator: decides.
            waits: learns how each generation ends.
            state: the live state.
            tokens: prove that a caller is a worker of a round.
            pace: shared by all readers.
        """
        self._coordinator = coordinator
        self._waits = waits
        self._state = state
        self._openings = Openings(state)
        self._tokens = tokens
        self._pace = pace

    async def Arrive(
        self, request: barrier_pb2.ArriveRequest, context: Context
    ) -> barrier_pb2.ArriveResponse:
        """Wait at a barrier."""
        arriving = self._count(request, context)
        del request  # with all names that it expects; each call that waits would keep them
        key, wait = await arriving
        ended = await wait.end()
        if wait.answer is None:  # one for all
            wait.answer = _answer(key, ended, self._waits)
        if isinstance(wait.answer, Status):
            raise CallRefused(wait.answer)
        return wait.answer  # type: ignore[return-value]  # the interceptor lets bytes pass

    async def _count(
        self, request: barrier_pb2.ArriveRequest, context: Context
    ) -> tuple[BarrierKey, Wait]:
        """Count an arrival; return its barrier, and the wait for its generation."""
        claim = self._tokens.claim(request.job_id, context.invocation_metadata())
        if not is_large(request.expected):
            return await self._ask(_convert(request, claim, context))
        await require_worker(self._coordinator, self._state, claim)
        key = to_key(request, claim)
        known = self._openings.find(request, key)
        if known is not None:
            return await self._ask(_convert(request, claim, context, known))
        now_s = asyncio.get_running_loop().time()
        self._openings.pay(key.job_id, request.expected, now_s)
        arrive = _convert(request, claim, context)
        with self._openings.opening(key, arrive.expected):
            return await self._ask(arrive)

    async def _ask(self, arrive: inputs.Arrive) -> tuple[BarrierKey, Wait]:
        found = self._coordinator.ask(arrive, lambda state, now_ms: self._find(state, arrive))
        return arrive.key, await found

    def _find(self, state: State, arrive: inputs.Arrive) -> Wait:
        """Return the wait for the generation of an arrival, which may have ended already."""
        key, mine, request_id = arrive.key, arrive.participant, arrive.request_id
        over = self._waits.find_over(key, mine, request_id)
        if over is not None:
            return over
        barrier = state.barriers.get(key.job_id, {}).get(key)
        arrival = state.arrivals.get(key, {}).get(mine)
        if barrier is not None and arrival is not None and arrival.request_id == request_id:
            wait = self._waits.find(key, barrier.generation)
            most = barrier.expected.count * CALLS_PER_PARTICIPANT_MAX
            if wait.calls >= most:
                raise LimitExceeded(Limit.BARRIER_CALLS, most)
            return wait
        ends = () if barrier is None else barrier.ends
        ended = next((one for one in ends if one.has(mine, request_id)), None)
        if ended is None:  # another attempt was known, and the round ended later in the same turn
            raise InputRefused(_over(state, arrive))
        return Wait(ended=ended)

    async def ListBarriers(
        self, request: barrier_pb2.ListBarriersRequest, context: Context
    ) -> barrier_pb2.ListBarriersResponse:
        """Return a page of open barriers."""
        size, token = to_page(request)
        job_id = JobId(request.job_id)
        return await read_barriers(self._coordinator, self._pace, job_id, size, token)


def _convert(
    request: barrier_pb2.ArriveRequest,
    claim: inputs.Claim,
    context: Context,
    known: Expected | None = None,
) -> inputs.Arrive:
    clock_ms = time.time_ns() // 1_000_000
    return to_arrive(request, claim, context.time_remaining(), clock_ms, known)


def _over(state: State, arrive: inputs.Arrive) -> Refusal:
    """Return the refusal of a worker whose round or run is over."""
    job, claim = find_job(state, arrive.job_id), arrive.claim
    if job.run != claim.run:
        return Refusal(RefusalKind.RUN_OVER, (("expected", job.run), ("actual", claim.run)))
    facts = (("expected", job.round_number), ("actual", claim.round))
    return Refusal(RefusalKind.OLD_ROUND, facts)


def _answer(key: BarrierKey, ended: Ended, source: Source) -> bytes | Status:
    if ended.broken is not None:
        return broken_status(key, ended)
    return released_message(ended, source).SerializeToString()
