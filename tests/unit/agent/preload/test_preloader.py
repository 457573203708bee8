"""When a forkserver is made, and what becomes of workers that it does not fork."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import socket
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.helper.events import Exited, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import Decoder, encode
from rallypoint.agent.helper.host import HostClosed, WorkerHost
from rallypoint.agent.preload import preloader as module
from rallypoint.agent.preload.command import RECORD_ENV, Preload, Shape
from rallypoint.agent.preload.preloader import Preloader
from support.processes.descriptors import list_open

LIMIT_S = 30.0
SHAPE = Shape(2, 1, None)
READY: dict[str, Any] = {"type": "ready", "failed": [], "refusal": "", "culprit": ""}


class Host:
    """Stands for a helper: its forkservers are sockets that answer."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.takes_requests = True
        self.runs_hook = True
        self.replies: list[dict[str, Any] | None] = []
        """Of the next forkservers, when they are asked to import; None: they end. Then: ready."""
        self.requests: list[SpawnRequest] = []
        self.prepared: list[dict[str, Any]] = []
        self.killed: list[int] = []
        self.changed = asyncio.Event()
        self.may_import = asyncio.Event()
        self.may_import.set()
        self._tasks = tasks

    def spawn(self, request: SpawnRequest) -> None:
        if not self.takes_requests:
            raise HostClosed
        self.requests.append(request)
        if request.server_fd >= 0:
            passed = socket.socket(fileno=os.dup(request.server_fd))
            self._tasks.create_task(self._run(request, passed))

    async def _run(self, request: SpawnRequest, passed: socket.socket) -> None:
        """Be a forkserver, or a probe."""
        loop, decoder = asyncio.get_running_loop(), Decoder()
        passed.setblocking(False)
        with passed:
            if not self.runs_hook:
                return
            await loop.sock_sendall(passed, encode({"type": "hello"}))
            while data := await loop.sock_recv(passed, 65536):
                for message in decoder.feed(data):
                    if message["type"] == "prepare":
                        await self.may_import.wait()
                        self.prepared.append(message)
                        reply = self.replies.pop(0) if self.replies else READY
                        if reply is None:
                            return
                        await loop.sock_sendall(passed, encode(reply))

    def signal(self, signum: int, ids: Collection[int]) -> None:
        assert signum == signal.SIGKILL
        self.killed += ids
        self.changed.set()


class Table:
    """A preloader, and what its agent would pass to it."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        argv, env = ("python", "-u", "t.py", "x"), {"RALLYPOINT_LOCAL_RANK": "0"}
        self.request = SpawnRequest(5, argv, env, "/", null, null, null)
        self.record = ""
        self.host = Host(tasks)
        self.tasks = tasks
        self.preloader = self.make(Preload(modules=("json",)))

    def make(self, preload: Preload) -> Preloader:
        """Return another preloader."""
        self.preloader = Preloader(
            preload=preload,
            shape=SHAPE,
            inherited={},
            sample=lambda: (self.request, (False, False)),
            terminal_fd=-1,
            host=lambda: cast("WorkerHost", self.host),
            record=lambda: self.record,
            tasks=self.tasks,
        )
        return self.preloader

    async def begin(self) -> None:
        """Make a forkserver, and wait until it can fork or cannot be made."""
        self.preloader.begin()
        async with asyncio.timeout(LIMIT_S):
            await self.preloader.wait()

    def choose(self) -> SpawnRequest:
        """Return the request of a worker."""
        return self.preloader.choose(self.request)

    def fork(self) -> int:
        """Ask for a worker that is forked; return the forkserver's id."""
        request = self.choose()
        assert request.via is not None
        return request.via

    def end(self, server: int) -> None:
        """Let a forkserver be killed, and what it was to fork be given up."""
        self.preloader.start_cold(SpawnFailed(5, 32, "it has ended"), is_wanted=False)
        assert self.preloader.takes(Exited(server, 1, None, 9, at_ns=0))


@pytest.fixture
async def table(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Table]:
    """A preloader that tries again at once. All descriptors are closed at the end."""
    monkeypatch.setattr(module, "AGAIN_S", 0.0)
    before = list_open()
    async with asyncio.TaskGroup() as tasks:
        one = Table(tasks)
        yield one
        await one.preloader.close()
    await asyncio.sleep(0)  # transports close
    os.close(one.request.stdout_fd)
    assert list_open() - before == set()


async def test_round_waits_while_it_imports(table: Table) -> None:
    """One import is never slower than one for each worker."""
    table.host.may_import.clear()
    table.preloader.begin()
    waiting = table.tasks.create_task(table.preloader.wait())
    await asyncio.sleep(0)

    assert table.preloader.is_importing
    assert not waiting.done()
    table.host.may_import.set()
    async with asyncio.timeout(LIMIT_S):
        await waiting
    assert not table.preloader.is_importing
    assert table.host.prepared[0]["modules"] == ["json"]


async def test_round_does_not_wait_long(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator breaks up a round that does not start. Later ones do not wait at all."""
    monkeypatch.setattr(module, "WAIT_LIMIT_S", 0.0)
    table.host.may_import.clear()
    with capture_logs() as logs:
        await table.begin()

    assert [line["event"] for line in logs] == ["preload_not_awaited"]
    assert not table.preloader.is_importing
    assert table.choose() == table.request
    table.host.may_import.set()
    monkeypatch.setattr(module, "WAIT_LIMIT_S", LIMIT_S)
    await table.begin()
    assert table.fork() < 0


async def test_workers_are_forked(table: Table) -> None:
    """By the forkserver, which knows all but what follows the script."""
    await table.begin()
    request = table.choose()

    assert request.via is not None
    assert request.argv == ("x",)
    assert not table.preloader.takes(Spawned(request.worker_id, 7))  # the supervisor's matter


async def test_worker_that_is_not_forked_starts_cold(table: Table) -> None:
    """With the same output, also if the caller has closed its own descriptors since."""
    await table.begin()
    table.fork()
    with capture_logs() as logs:
        assert table.preloader.start_cold(SpawnFailed(5, 11, "no process is left"), is_wanted=True)

    cold = table.host.requests[-1]
    assert (cold.via, cold.argv) == (None, table.request.argv)
    assert [(line["event"], line["why"]) for line in logs] == [
        ("worker_not_forked", "no process is left")
    ]
    assert not table.preloader.start_cold(SpawnFailed(5, 2, "no such file"), is_wanted=True)


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_worker_that_no_one_wants_does_not_start_cold(table: Table, is_wanted: bool) -> None:
    """Its round was stopped, or the helper is lost, which tells the end of the worker, too."""
    await table.begin()
    table.fork()
    table.host.takes_requests = not is_wanted

    assert not table.preloader.start_cold(SpawnFailed(5, 32, "gone"), is_wanted=is_wanted)


async def test_worker_that_differs_starts_cold(table: Table) -> None:
    """What was imported may depend on what differs."""
    await table.begin()
    master, slave = pty.openpty()
    with capture_logs() as logs:
        for request in (
            table.request._replace(stdout_fd=slave),
            table.request._replace(cwd="/tmp"),
        ):
            assert table.preloader.choose(request) == request
    os.close(master)
    os.close(slave)

    assert [line["why"] for line in logs] == [
        "its output goes to a terminal, or no longer to one",
        "its working directory differs",
    ]


async def test_another_one_is_made_after_its_end(table: Table) -> None:
    """The next round waits for it."""
    await table.begin()
    first = table.fork()
    with capture_logs() as logs:
        table.end(first)

        assert table.preloader.is_importing
        await table.begin()
    assert table.fork() != first
    assert [line["event"] for line in logs] == ["forkserver_ended", "preloaded"]
    assert logs[0]["why"] == "it was killed by SIGKILL"


async def test_forkserver_that_is_stuck_is_killed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers start cold then, and another one is made."""
    await table.begin()
    table.host.killed.clear()
    table.host.changed.clear()
    monkeypatch.setattr(module, "FORK_LIMIT_S", 0.0)
    server = table.fork()
    async with asyncio.timeout(LIMIT_S):
        await table.host.changed.wait()

    assert table.host.killed == [server]
    assert table.preloader.start_cold(SpawnFailed(5, 32, "it has ended"), is_wanted=True)
    table.end(server)
    await table.begin()
    monkeypatch.setattr(module, "FORK_LIMIT_S", LIMIT_S)
    assert table.fork() != server


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({**READY, "refusal": "an import has started a thread"}, "an import has started a thread"),
        (None, "it failed 3 times in a row: it has ended"),
        ({"type": "stale", "why": "x.py has changed"}, "3 times in a row: x.py has changed"),
    ],
)
async def test_preloading_is_given_up(table: Table, reply: dict[str, Any] | None, why: str) -> None:
    """At once after a refusal, else after three attempts. Every worker starts cold."""
    table.host.replies = [reply] * 3
    with capture_logs() as logs:
        await table.begin()
        await table.begin()

    assert logs[-1]["event"] == "preload_given_up"
    assert why in logs[-1]["why"]
    assert len(logs) == len(table.host.prepared) == (1 if reply and "refusal" in reply else 3)
    assert not table.preloader.is_importing
    assert table.choose() == table.request


async def test_failures_count_in_a_row(table: Table) -> None:
    """One that forks a worker in between sets the count back."""
    for _ in range(2):
        table.host.replies = [None]
        await table.begin()
        server = table.fork()
        table.preloader.takes(Spawned(5, 77))
        table.end(server)
    await table.begin()

    assert table.fork() < 0


async def test_forkservers_that_end_unused_are_given_up(table: Table) -> None:
    """Else imports beside the job, each of which may take a minute, would never end."""
    with capture_logs() as logs:
        for _ in range(3):
            await table.begin()
            table.end(table.fork())
        await table.begin()

    assert [line["event"] for line in logs].count("preloaded") == 3
    assert logs[-1]["event"] == "preload_given_up"
    assert table.choose() == table.request


async def test_interpreter_without_our_hook_is_found_out_before(table: Table) -> None:
    """It would run the script."""
    table.host.runs_hook = False
    with capture_logs() as logs:
        await table.begin()

    assert "does not run sitecustomize" in logs[-1]["why"]
    assert [request.argv[2] for request in table.host.requests] == ["-c"]


async def test_output_may_go_elsewhere(table: Table) -> None:
    """Each rank may have another kind of output; a forked worker opens its streams for it."""
    await table.begin()
    reader, writer = os.pipe()
    request = table.preloader.choose(table.request._replace(stdout_fd=writer))
    os.close(reader)
    os.close(writer)

    assert request.via is not None


async def test_lost_helper_is_no_failure(table: Table) -> None:
    """Another one is made once the helper was replaced."""
    table.host.takes_requests = False
    for _ in range(5):
        await table.begin()

    assert not table.preloader.is_importing
    table.host.takes_requests = True
    await table.begin()
    assert table.fork() < 0


async def test_module_that_cannot_be_imported_is_named_once(table: Table) -> None:
    """The forkserver is used all the same."""
    failed = {**READY, "failed": [{"name": "gone", "error": "ImportError: no"}]}
    table.host.replies = [failed, failed]
    with capture_logs() as logs:
        await table.begin()
        table.end(table.fork())
        await table.begin()

    names = [line["name"] for line in logs if line["event"] == "preload_import_failed"]
    assert names == ["gone"]


async def test_auto_imports_what_a_cold_worker_has_recorded(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What could not be imported is left out the next time, and is no one's mistake."""
    monkeypatch.setattr(module, "AUTO_S", 0.0)
    preloader = table.make(Preload(is_auto=True))
    record = tmp_path / "imports"
    table.record = str(record)
    record.write_text("json\ngone\njson\nunfini")
    table.host.replies = [{**READY, "failed": [{"name": "gone", "error": "no"}]}]
    await table.begin()
    assert table.host.requests == []
    with capture_logs() as logs:
        assert table.choose().env[RECORD_ENV] == str(record)
        other = table.request._replace(env={"RALLYPOINT_LOCAL_RANK": "1"})
        assert preloader.choose(other) == other
        async with asyncio.timeout(LIMIT_S):
            while not preloader.is_importing:  # noqa: ASYNC110 - a timer of no time begins it
                await asyncio.sleep(0)
            await preloader.wait()
        table.end(table.fork())
        await table.begin()

    assert [one["modules"] for one in table.host.prepared] == [["json", "gone"], ["json"]]
    assert "preload_import_failed" not in [line["event"] for line in logs]


async def test_auto_without_a_record_imports_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Workers that have ended at once have noted nothing."""
    monkeypatch.setattr(module, "AUTO_S", 0.0)
    preloader = table.make(Preload(is_auto=True))
    table.record = str(tmp_path / "imports")
    table.choose()
    async with asyncio.timeout(LIMIT_S):
        while not preloader.is_importing:  # noqa: ASYNC110 - a timer of no time begins it
            await asyncio.sleep(0)
        await preloader.wait()

    assert [one["modules"] for one in table.host.prepared] == [[]]
    assert table.fork() < 0


async def test_what_cannot_be_preloaded_is_left_out(table: Table) -> None:
    """The package that an import belongs to, with what is called in it; the others are imported."""
    table.make(Preload(modules=("json", "light.sub", "light"), calls=("light:begin", "json:loads")))
    refused = {**READY, "refusal": "has read RANK", "culprit": "light.sub"}
    table.host.replies = [refused, {**refused, "culprit": "json:loads"}]
    with capture_logs() as logs:
        await table.begin()

    asked = [(one["modules"], one["calls"]) for one in table.host.prepared]
    assert asked[1:] == [(["json"], ["json:loads"]), (["json"], [])]
    assert [line["event"] for line in logs] == ["preload_left_out"] * 2 + ["preloaded"]
    assert (logs[0]["name"], logs[0]["why"]) == ("light.sub", "has read RANK")
    assert table.fork() < 0


async def test_nothing_else_is_left_to_preload(table: Table) -> None:
    """Then every worker starts cold."""
    table.host.replies = [{**READY, "refusal": "has read RANK", "culprit": "json"}]
    with capture_logs() as logs:
        await table.begin()

    assert [line["event"] for line in logs] == ["preload_given_up"]
    assert logs[0]["why"] == "json has read RANK"
    assert table.choose() == table.request
