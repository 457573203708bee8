"""What the notices of a round mean for standbys."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.warm import policy
from rallypoint.agent.warm.command import Shape
from rallypoint.agent.warm.making import Maker
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.pool import Pool
from rallypoint.agent.warm.starts import WarmStarts


class Phases(Pool):
    """A pool that makes nothing, and notes the phases."""

    def __init__(self) -> None:
        state = policy.begin(0, 0, 0, can_import=False)
        super().__init__(
            maker=cast("Maker", None),
            shape=Shape(0, 0, None),
            inherited={},
            state=state,
            tasks=asyncio.TaskGroup(),
            launch=lambda: cast("WorkerHost", None),
        )
        self.phases: list[Phase] = []

    def enter(self, phase: Phase) -> None:
        self.phases.append(phase)
        super().enter(phase)


@pytest.mark.parametrize(
    ("before", "has_notices", "is_whole", "expected"),
    [
        (Phase.RUNNING, True, True, [Phase.DISTURBED]),
        (Phase.DISTURBED, False, True, [Phase.RUNNING]),
        (Phase.DISTURBED, False, False, []),  # a worker has ended
        (Phase.STOPPING, False, True, []),
        (Phase.WAITING, False, True, []),
        (Phase.RUNNING, False, True, []),
    ],
)
async def test_notices_disturb_a_round_until_they_are_withdrawn(
    before: Phase, has_notices: bool, is_whole: bool, expected: list[Phase]
) -> None:
    """A round that is calm again is one in which standbys are made."""
    pool = Phases()
    pool.enter(before)
    pool.phases.clear()
    starts = WarmStarts(pool, lambda host: host, lambda *_: None)
    starts.told(has_notices=has_notices, is_whole=is_whole)

    assert pool.phases == expected
