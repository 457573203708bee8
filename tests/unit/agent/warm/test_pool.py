"""What a start does with standbys that are lost, stuck, or were never spawned."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import cast

import pytest

from rallypoint.agent.helper.events import Exited, SpawnRequest
from rallypoint.agent.helper.host import HostClosed, WorkerHost
from rallypoint.agent.output.kinds import Kind, Kinds
from rallypoint.agent.warm import policy
from rallypoint.agent.warm.command import Shape, Warmth
from rallypoint.agent.warm.making import Maker
from rallypoint.agent.warm.pacing.pace import Pace
from rallypoint.agent.warm.phase import Phase
from rallypoint.agent.warm.pool import Pool
from rallypoint.agent.warm.standby import Standby

LIMIT_S = 20.0
FILES = Kinds(Kind.NULL, Kind.NULL)
SHAPE = Shape(2, 0, None)


class Host:
    """Stands for a helper: it starts nothing."""

    def __init__(self, *, is_lost: bool = False) -> None:
        self.takes_requests = not is_lost
        self.killed: list[int] = []
        self.sockets: list[socket.socket] = []
        """Of standbys that read nothing."""

    def attach(self, on_event: object) -> None:
        """No event comes."""

    def spawn(self, request: SpawnRequest) -> None:
        if not self.takes_requests:
            raise HostClosed
        self.sockets.append(socket.socket(fileno=os.dup(request.passed_fd)))

    def signal(self, signum: int, ids: tuple[int, ...]) -> None:
        self.killed += ids

    async def close(self) -> None:
        for one in self.sockets:
            one.close()

    def cast(self) -> WorkerHost:
        return cast("WorkerHost", self)


class Table:
    """A pool of one standby that waits, and what its agent would pass to it."""

    def __init__(self, tasks: asyncio.TaskGroup, env: Mapping[str, str]) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        self.request = SpawnRequest(0, ("python", "-u", "train.py"), env, "/", null, null, null)
        self.host = Host()
        self.maker = Maker(
            warmth=Warmth(),
            shape=SHAPE,
            inherited={},
            sample=lambda rank: self.request,
            guess=lambda rank: FILES,
            terminal_fd=-1,
            pace=Pace(lambda: 0, tasks),
        )
        state = policy.begin(1, 1, 0, can_import=True)
        self.pool = Pool(
            maker=self.maker,
            shape=SHAPE,
            inherited={},
            state=state,
            tasks=tasks,
            launch=self.host.cast,
        )
        self.standby = self.maker.begin(self.pool._home.open(), 0)
        self.pool._home.add(self.standby)
        self.pool._ready[0] = self.standby
        self.pool.enter(Phase.STARTING)

    def choose(self, other: Host | None) -> dict[int, Standby]:
        """Return what the round uses; its helper was `other`, or is lost."""
        return self.pool.choose({0: self.request}, lambda host: other.cast() if other else None)

    async def close(self) -> None:
        await self.pool.close()
        await self.host.close()
        os.close(self.request.stdout_fd)


async def test_start_beside_a_lost_helper_uses_no_standby() -> None:
    """The helper of the round is replaced first; that must not replace the standbys' one."""
    async with asyncio.TaskGroup() as tasks:
        table = Table(tasks, {})

        assert table.choose(None) == {}
        assert table.host.killed == [table.standby.id]
        await table.close()


async def test_round_that_was_stopped_waits_for_no_answer() -> None:
    """The request does not fit into the socket, and the standby does not read."""
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        table = Table(tasks, {"RANKS": "x" * 4_000_000})
        chosen = table.choose(Host())
        run = tasks.create_task(table.pool.run(chosen, {0: table.request}))
        for _ in range(3):  # until the answer is waited for
            await asyncio.sleep(0)
        assert table.standby._unsent
        run.cancel()
        table.pool.abandon(chosen)
        await table.close()

    assert run.cancelled()


async def test_worker_whose_variables_cannot_be_encoded_starts_cold() -> None:
    """The helper refuses it then with the same words; the agent lives."""
    async with asyncio.TaskGroup() as tasks:
        table = Table(tasks, {})
        table.request = table.request._replace(env={"TORCHELASTIC_X": "\ud800"})
        chosen = table.choose(Host())

        assert await table.pool.run(chosen, {0: table.request}) == {}
        assert table.host.killed == [table.standby.id]
        await table.close()


async def test_standby_that_cannot_be_spawned_leaves_nothing_open() -> None:
    """The helper has died since."""
    async with asyncio.TaskGroup() as tasks:
        table = Table(tasks, {})
        table.maker.kinds[0] = Kinds(Kind.PIPE, Kind.PIPE)
        before = len(os.listdir("/proc/self/fd"))
        lost = Host(is_lost=True).cast()
        for act in (table.maker.probe, lambda host: table.maker.begin(host, 0)):
            with pytest.raises(HostClosed):
                act(lost)

        assert len(os.listdir("/proc/self/fd")) == before
        await table.close()


@pytest.mark.parametrize(
    ("code", "signum", "expected"),
    [
        (None, 9, "it was killed by SIGKILL"),
        (None, 40, "it was killed by signal 40"),  # one without a name
        (1, None, "it has ended with exit code 1"),
        (0, None, "it has ended"),
        (None, None, "it has ended"),
    ],
)
async def test_end_of_a_standby_is_explained(
    code: int | None, signum: int | None, expected: str
) -> None:
    """And its place is free then."""
    async with asyncio.TaskGroup() as tasks:
        table = Table(tasks, {})
        table.standby.exited = Exited(table.standby.id, 1, code, signum, at_ns=0)

        assert table.standby.find_why() == expected
        await table.close()
