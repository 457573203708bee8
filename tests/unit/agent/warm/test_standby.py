"""The agent's end of the socket to a standby: requests, answers, and a standby that has ended."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.kinds import Kind, Kinds
from rallypoint.agent.warm.standby import Standby

LIMIT_S = 30.0
REQUEST = SpawnRequest(worker_id=0, argv=("python",), env={}, cwd="/", stdout_fd=-1, stderr_fd=-1)


class Host:
    """Stands for the helper: it keeps the socket that a standby would get."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None

    def spawn(self, request: SpawnRequest) -> None:
        self.socket = socket.socket(fileno=os.dup(request.passed_fd))


class Pair:
    """A standby as the agent sees it, and the socket of its process."""

    def __init__(self) -> None:
        self.standby = Standby(-1, 0, Kinds(Kind.FILE, Kind.FILE), -1)
        host = Host()
        self.standby.spawn(cast("WorkerHost", host), REQUEST)
        assert host.socket is not None
        self.socket = host.socket
        self.socket.settimeout(LIMIT_S)

    def ask(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        self.standby.ask({"RANK": "1"}, ["--flag"], (null, null, null))
        os.close(null)

    def tell(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def read(self) -> list[dict[str, Any]]:
        """Return what has arrived, and close the descriptors that came with it."""
        data, fds, _, _ = socket.recv_fds(self.socket, 65536, 16)
        for fd in fds:
            os.close(fd)
        return list(Decoder().feed(data))

    async def answer(self) -> str:
        async with asyncio.timeout(LIMIT_S):
            return await self.standby.answer()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A standby that waits."""
    one = Pair()
    yield one
    one.standby.close()
    one.socket.close()


async def test_request_is_sent_before_anyone_waits(pair: Pair) -> None:
    """The time of an answer does not begin before the standby can know of the request."""
    pair.ask()

    assert pair.read() == [
        {"type": "run", "environ": {"RANK": "1"}, "argv": ["--flag"], "shown": {}}
    ]
    pair.tell(type="running")
    assert await pair.answer() == ""


async def test_look_is_a_frame_without_an_answer(pair: Pair) -> None:
    """It goes out at once."""
    pair.standby.look()

    assert pair.read() == [{"type": "look"}]


async def test_standby_that_became_stale_before_tells_why(pair: Pair) -> None:
    """It has looked, told the reason and ended before it was asked to run."""
    pair.tell(type="stale", why="x.py has changed")
    pair.socket.close()
    pair.standby.look()
    pair.ask()

    assert await pair.answer() == "x.py has changed"


async def test_standby_that_has_ended_does_not_run(pair: Pair) -> None:
    """Whether it ends before the request or after it."""
    pair.socket.close()
    pair.ask()

    assert await pair.answer() == "it has ended"


async def test_answer_that_comes_late_but_was_sent_counts(pair: Pair) -> None:
    """The agent was busy: it has not read in time what the standby has answered in time."""
    pair.ask()
    pair.tell(type="running")

    assert pair.standby.refuse()


async def test_refused_standby_cannot_answer(pair: Pair) -> None:
    """After the refusal it is a cold start, whatever the standby does."""
    pair.ask()

    assert not pair.standby.refuse()
    with pytest.raises(BrokenPipeError):
        pair.tell(type="running")
