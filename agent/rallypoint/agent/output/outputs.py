"""The output of this node's workers: opens what each writes to, and sees it out in the end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Self

from rallypoint.agent.core.model import RunOrder
from rallypoint.agent.output.console import Console, Consoles
from rallypoint.agent.output.destinations import (
    Destinations,
    OutputSpec,
    Route,
    assign_destinations,
    compute_routes,
)
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.streams import (
    File,
    FileStream,
    Pump,
    Shown,
    Stream,
    open_file,
    open_terminal,
)
from rallypoint.wire.log import get_logger

log = get_logger()

END_LIMIT_S = 5.0
"""How long the agent's end waits for a console that takes what workers wrote, but slowly."""
TAKE_LIMIT_S = 1.0
"""How long it waits for what is left in pipes to be taken in."""


@dataclass(slots=True)
class WorkerOutput:
    """What one worker writes to. As a context: its descriptors are the caller's inside it only."""

    error_file: str
    """Empty: none."""
    stdout_fd: int = -1
    stderr_fd: int = -1
    streams: list[Stream] = field(default_factory=list)
    """Those that the agent sees; standard error is the last, and always among them."""

    def __enter__(self) -> Self:
        """Lend the descriptors."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the agent's copies: the streams end with the worker."""
        self.close()

    def add(self, fd: int, stream: Stream) -> int:
        """Add a stream that the agent sees; return the worker's descriptor."""
        self.streams.append(stream)
        return fd

    def close(self) -> None:
        """Close the agent's copies of the descriptors."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)

    def tail(self) -> str:
        """Return the end of standard error, from the beginning of a line if possible."""
        return self.streams[-1].tail()

    def silent_ms(self) -> int:
        """Return how long ago the worker wrote to standard error, in milliseconds."""
        return self.streams[-1].silent_ms()

    def hurry(self) -> None:
        """Note that the worker has ended."""
        for stream in self.streams:
            stream.hurry()

    async def wait_end(self, limit_s: float) -> None:
        """Wait until nobody can write to standard error any more, for at most `limit_s` seconds."""
        await self.streams[-1].wait_end(limit_s)


@dataclass(slots=True)
class WorkerOutputs:
    """Where the workers of this node write."""

    spec: OutputSpec
    consoles: Consoles
    folder: LogFolder
    node_name: Callable[[], str]
    """As it is when a round starts."""
    reify: Callable[[RunOrder], Destinations] | None = None
    """Assigns destinations in place of us: a plug-in."""
    _destinations: Destinations = field(default_factory=Destinations)
    _streams: list[Stream] = field(default_factory=list)
    """Those that have not ended when they were last looked at."""

    def begin(self, order: RunOrder) -> None:
        """Decide where the workers of a round write, and make the folders.

        Raises:
            OSError: they cannot be made.
        """
        self._streams = [stream for stream in self._streams if not stream.has_ended()]
        if self.reify is not None:
            self._destinations = self.reify(order)
            return
        is_first = self.folder.path is None
        folder = self.folder.begin(order, self.node_name())
        self._destinations = assign_destinations(self.spec, order, folder)
        if is_first and folder and (self.spec.redirects or self.spec.tee):
            log.info("logs_begun", folder=str(self.folder.path))

    def open(self, order: RunOrder, local_rank: int) -> WorkerOutput:
        """Open what one worker writes to.

        Raises:
            OSError: a file or a pipe cannot be opened.
        """
        out, err = compute_routes(
            self._destinations, self.spec, order, local_rank, self.node_name()
        )
        error_file = self._destinations.error_files.get(local_rank, os.devnull)
        found = WorkerOutput("" if error_file == os.devnull else error_file)
        try:
            if out == Route():
                found.stdout_fd = os.dup(self.consoles.out.fd)
            elif out == Route(is_shown=False):
                found.stdout_fd = os.open(os.devnull, os.O_WRONLY)
            else:
                found.stdout_fd = found.add(*_open_stream(out, self.consoles.out))
            found.stderr_fd = found.add(*_open_stream(err, self.consoles.err))
        except OSError:
            found.close()
            raise
        finally:
            self._streams += found.streams
        return found

    async def finish(self) -> None:
        """See out what the workers wrote, when all of them are gone; takes a bounded time."""
        for stream in self._streams:
            stream.hurry()
        await self._take_in()
        await asyncio.to_thread(self._flush)
        for console in (self.consoles.out, self.consoles.err):
            console.release()
        await self._take_in()
        self.folder.close()

    async def _take_in(self) -> None:
        await asyncio.gather(*(stream.wait_end(TAKE_LIMIT_S) for stream in self._streams))

    def _flush(self) -> None:
        end_s = time.monotonic() + END_LIMIT_S
        for console in (self.consoles.out, self.consoles.err):
            console.flush(end_s - time.monotonic())


def _open_stream(route: Route, console: Console) -> tuple[int, Stream]:
    """Return the descriptor that the worker gets, and what the agent sees of it."""
    if route.file and not route.is_shown:
        return open_file(route.file), FileStream(route.file)
    with ExitStack() as opened:
        file = shown = None
        if route.file:
            file = File(route.file)
            opened.callback(file.close)
        if route.is_shown:
            shown = Shown(console, route)
            opened.callback(shown.close)
        read_fd, write_fd = _open_ends(console.fd if route == Route() else -1)
        opened.callback(os.close, read_fd)
        opened.callback(os.close, write_fd)
        pump = Pump(read_fd, file, shown)
        opened.pop_all()
    return write_fd, pump


def _open_ends(like_fd: int) -> tuple[int, int]:
    """Return where to read and where to write: ends of a terminal if `like_fd` is one."""
    if like_fd >= 0 and os.isatty(like_fd):
        try:
            return open_terminal(like_fd)
        except OSError as error:  # a container may have none; colours are not worth a job
            log.debug("terminal_not_opened", error=str(error), then="workers write to a pipe")
    return os.pipe()
