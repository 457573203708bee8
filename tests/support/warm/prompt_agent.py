"""node-agent that begins each round once its standbys are there: a test waits for no calm round."""

from __future__ import annotations

import asyncio
import sys

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.warm import policy
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.pool import Pool
from rallypoint.agent.workers.supervisor import Supervisor
from rallypoint.cli.main import node_agent

LIMIT_S = 30.0
start = Supervisor.start


def is_settled(state: policy.State) -> bool:
    """Return whether no standby is made, and no other one is wanted."""
    is_making = any(seat.place is policy.Place.MAKING for seat in state.seats)
    return not is_making and policy._find_wanted(state) is None


async def start_later(supervisor: Supervisor, pool: Pool, order: RunOrder) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            while pool._state.phase is Phase.WAITING and not is_settled(pool._state):  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # the policy has no event
    except TimeoutError:  # it starts cold, and the test says so
        pass
    if pool._state.phase is Phase.WAITING:  # the round was not stopped before
        start(supervisor, order)


def start_patiently(supervisor: Supervisor, order: RunOrder) -> None:
    warm = supervisor._warm
    if warm is None:
        start(supervisor, order)
    else:
        supervisor.tasks.create_task(start_later(supervisor, warm.pool, order))


if __name__ == "__main__":
    policy.NEEDS[Phase.WAITING] = 0
    setattr(Supervisor, "start", start_patiently)  # noqa: B010 - mypy refuses another function
    sys.exit(node_agent())
