"""Runs a case twice, below one helper: as a fresh worker, and as a fork of a forkserver.

It uses what the agent uses: the helper, and command lines, environments and frames of forkservers.
Only the preloader is left out, with its limits of time, so that a busy machine changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import signal
import sys
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.agent.helper.events import Exited, HostEvent, Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.preload.command import Shape, forked_by, forkserver_environment
from rallypoint.agent.preload.forkserver import Forkserver
from rallypoint.agent.round.environ import Launch, worker_command
from support.oddities.case import HERE, Case, Outcome, normalise, script_of

LIMIT_S = 150.0
"""For both runs of a case: far beyond what is expected, so that a busy machine passes."""
INHERITED = {"RALLYPOINT_AGENT": "mark"}
ROUND = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "RALLYPOINT_ROUND": "2",
}
ASKED = b"asked\n"


@dataclass(frozen=True)
class Streams:
    """What a worker has as its standard streams; closing one twice does no harm."""

    stdin: io.FileIO
    stdout: io.FileIO
    stderr: io.FileIO

    def numbers(self) -> tuple[int, int, int]:
        """Return their descriptors."""
        return self.stdin.fileno(), self.stdout.fileno(), self.stderr.fileno()


@dataclass
class Driver:
    """A helper, and the loop in which its events arrive."""

    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    host: WorkerHost = field(init=False)
    _starts: dict[int, asyncio.Future[str]] = field(default_factory=dict)
    """Why a process was not started, by id; empty: it was."""
    _exits: dict[int, asyncio.Future[int]] = field(default_factory=dict)
    _servers: dict[int, Forkserver] = field(default_factory=dict)
    _ids: int = 0

    def __post_init__(self) -> None:
        self.host = WorkerHost.launch()
        self.runner.run(self._attach())

    async def _attach(self) -> None:
        self.host.attach(self._on_event)

    def close(self) -> None:
        """End the helper and everything below it."""
        self.runner.run(self.host.close())
        self.runner.close()

    def _on_event(self, event: HostEvent) -> None:
        match event:
            case Spawned(worker_id):
                self._starts[worker_id].set_result("")
            case SpawnFailed(worker_id, _, message):
                self._starts[worker_id].set_result(message)
                self._exits[worker_id].set_exception(OSError(message))
            case Exited(worker_id, _, code, signum):
                if worker_id in self._servers:
                    self._servers[worker_id].note_end(event)
                self._exits[worker_id].set_result(-signum if signum is not None else code or 0)
            case _:
                pass

    def _next_id(self) -> int:
        self._ids += 1
        loop = self.runner.get_loop()
        self._starts[self._ids] = loop.create_future()
        self._exits[self._ids] = loop.create_future()
        return self._ids

    def compare(self, case: Case, folder: Path) -> tuple[Outcome, Outcome]:
        """Return how the case ends in a fresh worker, and in a forked one.

        Raises:
            AssertionError: the worker was forked although it must not be, or the reverse.
        """
        return self.runner.run(self._compare(case, folder))

    async def _compare(self, case: Case, folder: Path) -> tuple[Outcome, Outcome]:
        cold, forked = folder / "cold", folder / "forked"
        for here in (cold, forked):
            lay_out(case, here)
        async with asyncio.timeout(LIMIT_S), AsyncExitStack() as stack:
            opened = stack.enter_context(ExitStack())
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            async with Run(self, case, forked, opened, tasks) as forked_run:
                await forked_run.make_forkserver()
                for here in (cold, forked):
                    change(case, here)
                async with Run(self, case, cold, opened, tasks) as cold_run:
                    cold_run.start_cold()
                    why = await forked_run.start_forked()
                    assert bool(case.refused) is bool(why), why
                    assert case.refused in why, why
                    if why:
                        forked_run.start_cold()
                    return await cold_run.outcome(), await forked_run.outcome()


class Run:
    """One of the two runs of a case."""

    def __init__(
        self, driver: Driver, case: Case, here: Path, opened: ExitStack, tasks: asyncio.TaskGroup
    ) -> None:
        self._driver, self._case, self._here, self._opened = driver, case, here, opened
        self._tasks = tasks
        self._readers: list[asyncio.Task[bytes]] = []
        self._files: list[Path] = []
        self.server: Forkserver | None = None
        self.refusal = ""
        self._worker_id = 0

    async def __aenter__(self) -> Run:
        self.streams = self._open_streams()
        with contextlib.chdir(self._fill(self._case.cwd)):
            self.request, self.shape = command_of(self._case, self._here, self.streams)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.server is not None:
            self.server.close()
        for worker_id, end in self._driver._exits.items():
            if not end.done():
                self._driver.host.signal(signal.SIGKILL, (worker_id,))
        for reader in self._readers:
            reader.cancel()

    def _fill(self, text: str) -> str:
        return text.replace(HERE, str(self._here))

    def _open_streams(self) -> Streams:
        stdin = self._open_input(self._case.stdin)
        return Streams(stdin, self._open_output("out"), self._open_output("err"))

    def _own(self, fd: int, mode: str = "wb") -> io.FileIO:
        return self._opened.enter_context(io.FileIO(fd, mode))

    def _open_input(self, kind: str) -> io.FileIO:
        if kind == "pipe":
            reader, writer = os.pipe()
            os.write(writer, ASKED)
            os.close(writer)
            return self._own(reader, "rb")
        if kind == "terminal":
            master, slave = pty.openpty()
            self._own(master)
            os.write(master, ASKED)
            return self._own(slave, "rb")
        path = os.devnull
        if kind == "file":
            path = str(self._here.parent / f"{self._here.name}-in")
            Path(path).write_bytes(ASKED)
        return self._own(os.open(path, os.O_RDONLY), "rb")

    def _open_output(self, name: str) -> io.FileIO:
        kind = self._case.out
        if kind == "pipe":
            reader, writer = os.pipe()
            self._read(self._own(reader, "rb"))
            return self._own(writer)
        if kind == "terminal":
            reader, writer = pty.openpty()
            self._read(self._own(reader, "rb"))
            return self._own(writer)
        if kind == "null":
            return self._own(os.open(os.devnull, os.O_WRONLY))
        path = self._here.parent / f"{self._here.name}-{name}"
        self._files.append(path)
        return self._own(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))

    def _read(self, file: io.FileIO) -> None:
        self._readers.append(self._tasks.create_task(read_all(file)))

    async def make_forkserver(self) -> None:
        """Start the forkserver, and wait until it has imported."""
        _, out, err = self.streams.numbers()
        id = self._driver._next_id()
        environment = forkserver_environment(self.request.env, INHERITED)
        argv = self.request.argv
        if self._case.args_before is not None:
            argv = argv[: len(argv) - self.shape.arguments] + self._case.args_before
        request = self.request._replace(worker_id=id, argv=argv, env=environment)
        server = Forkserver(request, (os.isatty(out), os.isatty(err)), out)
        self.server = self._driver._servers[id] = server
        await server.spawn(self._driver.host)
        await server.receive()
        program = argv[self.shape.flags_end :]
        ready = await server.prepare(self._case.preload, self._case.calls, self.shape.path, program)
        assert ready["type"] == "ready", ready
        self.refusal = str(ready["refusal"])
        if not self.refusal:
            server.serve()

    async def start_forked(self) -> str:
        """Let the worker be forked; return why it is not."""
        assert self.server is not None
        if self.refusal:
            return self.refusal
        self._worker_id = self._driver._next_id()
        request = self.request._replace(worker_id=self._worker_id)
        self._driver.host.spawn(forked_by(self.server.id, request, self.shape))
        why = await self._driver._starts[self._worker_id]
        if not why:
            return ""
        self._driver._exits[self._worker_id].exception()  # it is known
        return f"{why}: {await self.server.find_why()}"

    def start_cold(self) -> None:
        """Start a fresh worker."""
        if self.server is not None:
            self.server.close()
        self._worker_id = self._driver._next_id()
        self._driver.host.spawn(self.request._replace(worker_id=self._worker_id))

    async def outcome(self) -> Outcome:
        """Wait for its end, and for the end of its output."""
        ended = await self._driver._exits[self._worker_id]
        self.streams.stdout.close()
        self.streams.stderr.close()
        data = [await reader for reader in self._readers]
        data = data or [path.read_bytes() for path in self._files] or [b"", b""]
        out, err = (self._clean(text) for text in data)
        return Outcome(ended, out, err)

    def _clean(self, data: bytes) -> str:
        text = data.decode("utf-8", "backslashreplace")
        return normalise(text.replace(str(self._here), "HERE"))


def command_of(case: Case, here: Path, streams: Streams) -> tuple[SpawnRequest, Shape]:
    """Return what the agent in this folder would start, and the parts of its command line."""

    def fill(text: str) -> str:
        return text.replace(HERE, str(here))

    launch = Launch(
        fill(case.script),
        tuple(map(fill, case.args)),
        is_module=case.is_module,
        run_path=case.run_path,
    )
    python = fill(case.python) or sys.executable
    argv = list(worker_command(launch, python=python, round=2, local_rank=1))
    shape = launch.shape("")
    argv[shape.flags_end : shape.flags_end] = case.flags
    shape = Shape(shape.flags_end + len(case.flags), shape.arguments, shape.path)
    env = {"PATH": os.environ["PATH"], "HOME": str(here), "LC_ALL": "C.UTF-8"}
    env |= {name: fill(value) for name, value in case.env.items()}
    request = SpawnRequest(
        worker_id=0,
        argv=tuple(argv),
        env={name: value for name, value in {**env, **ROUND, **INHERITED}.items() if value != "-"},
        cwd=os.getcwd(),
        cpus=case.cpus,
        stdin_fd=streams.stdin.fileno(),
        stdout_fd=streams.stdout.fileno(),
        stderr_fd=streams.stderr.fileno(),
    )
    return request, shape


def lay_out(case: Case, here: Path) -> None:
    """Write the files of a case."""
    here.mkdir()
    for name, content in {"train.py": script_of(case), **case.files}.items():
        path = here / name.removeprefix("->")
        path.parent.mkdir(parents=True, exist_ok=True)
        match content:
            case None:
                path.mkdir(exist_ok=True)
            case bytes():
                path.write_bytes(content)
            case text if name.startswith("->"):
                path.symlink_to(text)
            case text:
                path.write_text(text)
                path.chmod(0o755 if text.startswith("#!") else 0o644)


def change(case: Case, here: Path) -> None:
    """Do what happens once the forkserver is ready."""
    for name, content in case.later.items():
        path = here / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)


async def read_all(file: io.FileIO) -> bytes:
    """Read until no process can write any more."""
    loop, data, end = asyncio.get_running_loop(), bytearray(), asyncio.Event()
    fd = file.fileno()
    os.set_blocking(fd, False)

    def read() -> None:
        try:
            part = os.read(fd, 65536)
        except BlockingIOError:
            return
        except OSError:  # EIO: the last writer has closed the terminal
            part = b""
        data.extend(part)
        if not part:
            loop.remove_reader(fd)
            end.set()

    loop.add_reader(fd, read)
    try:
        await end.wait()
    finally:
        loop.remove_reader(fd)
    return bytes(data)
