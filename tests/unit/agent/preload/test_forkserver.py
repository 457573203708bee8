"""The agent's end of the socket to a forkserver: frames, output of the imports, and its end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from rallypoint.agent.helper.events import Exited, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.preload.forkserver import KEPT_BYTES, Forkserver, Hangup

LIMIT_S = 30.0
REQUEST = SpawnRequest(
    worker_id=-4, argv=("python",), env={}, cwd="/", stdout_fd=-1, stderr_fd=-1, cpus=(0,)
)


class Host:
    """Stands for the helper: it keeps what a forkserver would get."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.request: SpawnRequest | None = None

    def spawn(self, request: SpawnRequest) -> None:
        self.request = request
        self.fds = [os.dup(fd) for fd in request.fds]


class Pair:
    """A forkserver as the agent sees it, and the descriptors of its process."""

    def __init__(self) -> None:
        self.server = Forkserver(REQUEST, (False, False), -1)
        self.host = Host()

    async def begin(self) -> None:
        """Start it."""
        await self.server.spawn(cast("WorkerHost", self.host))
        *self.streams, passed = self.host.fds
        self.socket = socket.socket(fileno=passed)
        self.socket.settimeout(LIMIT_S)

    def tell(self, **message: Any) -> None:
        self.socket.sendall(encode(message))

    def read(self) -> list[dict[str, Any]]:
        """Return what has arrived."""
        return list(Decoder().feed(self.socket.recv(1 << 20)))

    def close(self) -> None:
        """Close what its process has."""
        self.socket.close()
        while self.streams:
            os.close(self.streams.pop())


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A forkserver that was just started."""
    one = Pair()
    await one.begin()
    yield one
    one.server.close()
    one.close()


async def test_request_of_a_forkserver(pair: Pair) -> None:
    """It has all processors: its workers are bound."""
    request = pair.host.request
    assert request is not None

    assert (request.worker_id, request.cpus) == (-4, ())


async def test_imports_are_asked_for_and_answered(pair: Pair) -> None:
    """Bytes outside UTF-8 travel, too."""
    pair.tell(type="ready", failed=[], refusal="", culprit="")
    async with asyncio.timeout(LIMIT_S):
        ready = await pair.server.prepare(["json"], ["a:f"], "/x", ["train.py", "\udce9"])

    assert ready["refusal"] == ""
    assert pair.read() == [
        {
            "type": "prepare",
            "modules": ["json"],
            "calls": ["a:f"],
            "path": "/x",
            "program": ["train.py", "\udce9"],
        }
    ]


async def test_look_is_a_byte_without_an_answer(pair: Pair) -> None:
    """It goes out at once."""
    pair.server.look()

    assert len(pair.socket.recv(1 << 20)) == 1


async def test_forkserver_that_has_ended_answers_nothing(pair: Pair) -> None:
    """A wait for it ends, and a look does no harm."""
    pair.close()
    pair.server.look()
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(Hangup):
            await pair.server.receive()


async def test_output_of_the_imports_is_shown_by_each_worker(pair: Pair) -> None:
    """The agent keeps the start of what goes to a pipe or a terminal."""
    os.set_blocking(pair.streams[1], False)
    left = 80_000
    async with asyncio.timeout(LIMIT_S):
        while left:
            try:
                left -= os.write(pair.streams[1], b"x" * left)
            except BlockingIOError:  # the pipe is full, and the agent reads it
                await asyncio.sleep(0)
    pair.server.serve()

    assert pair.read() == [{"type": "serve", "shown": {"1": "x" * KEPT_BYTES}}]


async def test_forkserver_that_became_stale_tells_why(pair: Pair) -> None:
    """It has looked, told the reason and ended. Its exit may be known before it was read."""
    pair.server.look()
    pair.tell(type="stale", why="x.py has changed")
    pair.close()
    pair.server.look()
    pair.server.note_end(Exited(-4, 1, 0, None, at_ns=0))

    assert await pair.server.find_why() == "x.py has changed"


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
async def test_end_of_a_forkserver_is_explained(
    pair: Pair, code: int | None, signum: int | None, expected: str
) -> None:
    """As the helper tells it."""
    pair.close()
    pair.server.note_end(Exited(-4, 1, code, signum, at_ns=0))

    assert await pair.server.find_why() == expected


async def test_forkserver_that_was_not_started_tells_why(pair: Pair) -> None:
    """The end of its socket may be known before."""
    pair.close()
    with pytest.raises(Hangup):
        await pair.server.receive()
    failed = SpawnFailed(-4, 2, "cannot run python: No such file or directory")
    asyncio.get_running_loop().call_soon(pair.server.note_end, failed)

    assert await pair.server.find_why() == failed.message
