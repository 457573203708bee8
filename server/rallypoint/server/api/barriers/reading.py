"""Pages of open barriers, by scope and name."""

from __future__ import annotations

from rallypoint.server.api.barriers.messages import barrier_message
from rallypoint.server.contract.calls import find_job
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.pages import read_page, read_token
from rallypoint.server.core.model.barrier import BarrierKey
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.v1 import barrier_service_pb2 as barrier_pb2


async def read_barriers(
    coordinator: Coordinator, pace: Pace, job_id: JobId, size: int, token: str
) -> barrier_pb2.ListBarriersResponse:
    """Return a page of the open barriers of a job.

    Args:
        coordinator: read in several turns; each shows what is in the journal then.
        pace: this reader's and all others'.
        job_id: the job.
        size: most barriers, 1 or more.
        token: of the page before; empty for the first page.

    Raises:
        InvalidMessage: when the token is none.
        InputRefused: when there is no such job.
    """
    page, after = barrier_pb2.ListBarriersResponse(), read_place(token)

    def begin(state: State, now_ms: int) -> list[BarrierKey]:
        find_job(state, job_id)
        barriers = state.barriers.get(job_id, {}).values()
        keys = [barrier.key for barrier in barriers if barrier.is_open]
        return sorted((key for key in keys if _place(key) > after), key=_place)

    def show(key: BarrierKey, state: State, now_ms: int) -> barrier_pb2.Barrier | None:
        job, barrier = find_job(state, job_id), state.barriers.get(job_id, {}).get(key)
        if barrier is None or not barrier.is_open:
            return None
        return barrier_message(barrier, state.arrivals[key], job, now_ms)

    async with pace.turn():
        keys = await coordinator.read(begin)
        last = await read_page(coordinator, page.barriers, keys, show, size)
    if last is not None:
        page.next_page_token = f"{last.round}:{last.name}"
    return page


def _place(key: BarrierKey) -> tuple[int, str]:
    """Return where a barrier stands in a list. Barriers of the run have round 0 and come first."""
    return key.round, key.name


def read_place(token: str) -> tuple[int, str]:
    """Return the round and the name of the last barrier before a page.

    Raises:
        InvalidMessage: when it is no token.
    """
    round, name = read_token(token or "0:", r"(\d{1,16}):(.*)")
    return int(round), name
