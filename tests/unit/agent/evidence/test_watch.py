"""A look at workers, with a server in this process in place of torch's."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from rallypoint.agent.evidence import watch
from rallypoint.agent.evidence.progress import Limits
from rallypoint.agent.evidence.recorder import Mark
from rallypoint.agent.evidence.target import Target
from rallypoint.agent.evidence.watch import ProgressWatch
from rallypoint.agent.output.outputs import WorkerOutput
from rallypoint.agent.output.streams import FileStream
from rallypoint.base.file_thread import FileThread

RECORDED = {
    "pg_config": {"": {"desc": "", "name": "", "ranks": "[0]"}},
    "entries": [
        {"record_id": 4, "retired": True, "time_created_ns": 70},
        {"record_id": 5, "state": "scheduled", "time_created_ns": 80},
    ],
}
MARK = Mark(True, 5, 1, 80)
Answer = tuple[bytes, bytes] | None
"""Status and body; None: it does not answer."""


class Server:
    """Answers as torch's does, or not."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {"fr_trace_json": (b"200 OK", _encode(RECORDED))}
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        handler = head.split()[1].decode().removeprefix("/handler/")
        self.asked.append(handler)
        answer = self.answers.get(handler, (b"404 Not Found", b""))
        if answer is not None:
            status, body = answer
            length = len(body)
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, length, body))
        else:
            await reader.read()
        writer.close()


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Server, Target]]:
    """Yield a server of this process, and this process as a worker."""
    server = Server()
    output = WorkerOutput("", streams=[FileStream(str(folder / "log"))])
    target = Target(1, 0, 0, 1, os.getpid(), str(folder / "w"), output)
    listening = await asyncio.start_unix_server(server.serve, target.socket)
    try:
        yield server, target
    finally:
        listening.close()


@asynccontextmanager
async def watching(limits: Limits | None = None) -> AsyncIterator[ProgressWatch]:
    async with asyncio.timeout(100), asyncio.TaskGroup() as tasks:
        one = ProgressWatch(limits, FileThread("test"), tasks)
        try:
            yield one
        finally:
            one.close()


async def test_answer_is_a_mark(tmp_path: Path) -> None:
    """NCCL's recorder is asked for once where this torch has none; the kernel is asked, too."""
    async with serving(tmp_path) as (server, target), watching() as one:
        (seen,) = await one._look([target])
        await one._look([target])

    assert (seen.mark, seen.is_mute, seen.is_store) == (MARK, False, True)
    assert seen.usage is not None and seen.usage[os.getpid()].cpu_ms > 0
    assert seen.wrote_ms is None
    assert server.asked == ["fr_trace_json", "dump_nccl_trace_json", "fr_trace_json"]


async def test_both_recorders_count(tmp_path: Path) -> None:
    """A worker may use gloo and NCCL."""
    async with serving(tmp_path) as (server, target), watching() as one:
        done = {"record_id": 7, "time_created_ns": 90, "time_discovered_completed_ns": 95}
        server.answers["dump_nccl_trace_json"] = b"200 OK", _encode({"entries": [done]})
        (seen,) = await one._look([target])

    assert seen.mark == Mark(True, 12, 1, 95)


@pytest.mark.parametrize(
    ("answer", "is_mute"),
    [
        ((b"404 Not Found", b""), False),
        ((b"500 No", b""), False),
        ((b"200 OK", b"no json"), False),
        (None, True),
    ],
)
async def test_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, is_mute: bool
) -> None:
    """One that answers otherwise counts as without a recorder; one that does not is mute."""
    monkeypatch.setattr(watch, "LIMIT_S", 0.2)
    async with serving(tmp_path) as (server, target), watching() as one:
        server.answers["fr_trace_json"] = answer
        (seen,) = await one._look([target])

    assert (seen.mark, seen.is_mute) == (None, is_mute)
    assert len(server.asked) == 1 and seen.usage is not None


async def test_kernel_that_is_not_asked_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent does not know then whether the worker still has its server."""
    monkeypatch.setattr(watch, "LIMIT_S", 0.2)
    go, files = threading.Event(), FileThread("test")
    async with serving(tmp_path) as (server, target), asyncio.TaskGroup() as tasks:
        files.begin(partial(go.wait, 100))
        (seen,) = await ProgressWatch(None, files, tasks)._look([target])
        go.set()

    assert (seen.mark, seen.is_mute, seen.usage) == (None, True, None)
    assert server.asked == []


async def test_server_of_another_process_is_not_asked(tmp_path: Path) -> None:
    """The worker has closed its socket: to ask would end it."""
    async with serving(tmp_path) as (server, target), watching() as one:
        closed = Target(1, 0, 0, 1, os.getppid(), target.prefix, target.output)
        unarmed = Target(2, 1, 1, 2, os.getpid(), "", target.output)
        seen = await one._look([closed, unarmed])

    assert [(each.mark, each.is_mute) for each in seen] == [(None, False)] * 2
    assert server.asked == []


async def watched(
    target: Target, limits: Limits | None, is_wanted: Callable[[], bool] = lambda: True
) -> list[int | None]:
    """Return what is seen until the watch has seen something, or has ended."""
    news: list[int | None] = []
    async with watching(limits) as one:

        def see(since_ms: int | None) -> None:
            news.append(since_ms)
            one.close()

        one.begin(lambda: [target], is_wanted, see)
        if one._task is not None:
            await asyncio.wait([one._task])
    return news


async def test_standstill_is_seen(tmp_path: Path) -> None:
    """The recorder shows nothing new."""
    async with serving(tmp_path) as (_, target):
        (since_ms,) = await watched(target, Limits(1_000, 60_000))

    assert since_ms is not None


async def test_watch_ends_with_its_round(tmp_path: Path) -> None:
    """Nothing is asked any more."""
    async with serving(tmp_path) as (server, target):
        assert await watched(target, Limits(1_000, 60_000), lambda: False) == []
        assert await watched(target, None) == []

    assert server.asked == []
