"""The agent notices that real workers stand still, and that they move again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.evidence import server, watch
from rallypoint.agent.evidence.progress import Limits
from rallypoint.agent.evidence.server import GENERIC
from support.evidence.node import LIMIT_S, running

LATE_MS = 11_000
"""A second, and turns on a busy machine."""
AFTER_MS = 1_000
FIRST = Limits(AFTER_MS, 3_000)
PROGRAMS = {
    "computes": "import threading; say(); threading.Thread(target=spin).start()",
    "prints": "import time; say()\nwhile True: print('.', flush=True); time.sleep(0.05)",
    "errs": "import sys, time; say()\nwhile True: print('.', file=sys.stderr); time.sleep(0.05)",
    "waits": "import subprocess, sys; say(); subprocess.run([sys.executable, '-c', 'while 1: 0'])",
}
SAY = """
def spin():
    while True: pass

def say():
    import os, socket
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(os.environ["TEST_SOCKET"])
        one.sendall(b"0 begun")
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class Looks:
    """What the watch has seen, and how often it has asked for a recorder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.news: asyncio.Queue[tuple[int | None, float]] = asyncio.Queue()
        """Since when the workers stand still, and when the watch tells it."""
        self.is_still = False
        self.count = 0
        self.asked: list[str] = []
        self._looked = asyncio.Event()
        ask, look = server.ask, watch.ProgressWatch._look

        async def counted_ask(socket: str, handler: str) -> bytes:
            self.asked.append(handler)
            return await ask(socket, handler)

        async def counted_look(*args: object) -> object:
            found = await look(*args)  # type: ignore[arg-type]
            self.count += 1
            self._looked.set()
            return found

        monkeypatch.setattr(watch, "ask", counted_ask)
        monkeypatch.setattr(watch.ProgressWatch, "_look", counted_look)

    def post(self, input: inputs.Input) -> None:
        if isinstance(input, inputs.ProgressSeen):
            self.is_still = input.still_since_ms is not None
            self.news.put_nowait((input.still_since_ms, time.monotonic() * 1000))

    async def still(self) -> float:
        """Wait until the workers stand still; return for how long they have, in ms."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                since_ms, at_ms = await self.news.get()
                if since_ms is not None:
                    return at_ms - since_ms

    async def moves(self) -> None:
        """Wait until they move again."""
        async with asyncio.timeout(LIMIT_S):
            while (await self.news.get())[0] is not None:
                pass

    async def next(self, count: int) -> None:
        """Wait for so many looks."""
        async with asyncio.timeout(LIMIT_S):
            goal = self.count + count
            while self.count < goal:
                self._looked.clear()
                await self._looked.wait()


def script(folder: Path, deed: str) -> tuple[str, ...]:
    """Return the command of a plain script."""
    path = folder / "script.py"
    path.write_text(SAY + PROGRAMS[deed])
    return sys.executable, str(path)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


@pytest.mark.parametrize("deed", ["computes", "prints", "errs", "waits"])
async def test_plain_script_that_does_something(tmp_path: Path, looks: Looks, deed: str) -> None:
    """A processor in use, or output, is progress, also of a descendant; not once it is stopped."""
    async with running(
        tmp_path, ("",), command=script(tmp_path, deed), limits=FIRST, post=looks.post
    ) as node:
        await looks.next(6)
        assert not looks.is_still
        os.kill(node.pid(0), signal.SIGSTOP)
        if deed == "waits":
            await looks.next(6)
            assert not looks.is_still
            return
        assert await looks.still() >= FIRST.first_after_ms
        os.kill(node.pid(0), signal.SIGCONT)
        await looks.moves()


async def test_worker_that_sleeps(tmp_path: Path, looks: Looks) -> None:
    """It stands still; what it writes for the evidence changes nothing."""
    async with running(tmp_path, ("asleep",), limits=FIRST, post=looks.post) as node:
        still_ms = await looks.still()
        for _ in range(2):
            (one,) = await node.supervisor.evidence()
            await looks.next(2)

        assert FIRST.first_after_ms <= still_ms < FIRST.first_after_ms + LATE_MS
        assert looks.is_still and one.threads


async def test_rank_that_others_wait_for(tmp_path: Path, looks: Looks) -> None:
    """The node stands still until it enters the collective; then a look costs one read a worker."""
    pipe = tmp_path / "s.pipe"
    os.mkfifo(pipe)
    limits = Limits(AFTER_MS, 600_000)
    async with running(tmp_path, ("trains", "held"), limits=limits, post=looks.post):
        still_ms = await looks.still()
        await looks.next(2)
        assert looks.is_still
        os.close(os.open(pipe, os.O_WRONLY))
        await looks.moves()
        looks.asked.clear()
        await looks.next(3)
        reads = len(looks.asked)

    assert AFTER_MS <= still_ms < AFTER_MS + LATE_MS
    assert looks.asked[:reads] == [GENERIC] * 6


async def test_training_is_not_disturbed(tmp_path: Path, looks: Looks) -> None:
    """Looks and collections of evidence at the same time do each what they do alone."""
    limits = Limits(5_000, 600_000)
    async with running(tmp_path, ("trains", "trains"), limits=limits, post=looks.post) as node:
        await node.supervisor.evidence()
        begun, reads = looks.count, len(looks.asked)  # torch may load for longer than that
        is_complete = False
        while looks.count < begun + 4:
            found = await node.supervisor.evidence()
            is_complete |= all(one.groups for one in found)  # a busy machine may be late once

        assert looks.news.empty()
        assert len(looks.asked) - reads <= 2 * 5 + 2  # a look may have begun before, one after
        assert is_complete
