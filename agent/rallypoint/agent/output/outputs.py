"""The output of this node's workers: opens the streams of each, and drains them at the end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Self

from msgspec import Struct, field

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.output.destinations import (
    Destinations,
    OutputSpec,
    Route,
    assign_destinations,
    compute_routes,
    filtered_files,
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
from rallypoint.base.console import Console, Consoles
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

END_LIMIT_S = 5.0
"""How long the agent's end waits for a slow console."""
LATE_S_MAX = 0.5
"""How long the end of standard error waits for a thread that has not read it yet."""
DRAIN_LIMIT_S = 1.0
"""How long the agent's end waits for pipes to be read to their end."""


class WorkerOutput(Struct):
    """The streams of one worker. As a context manager, it closes the descriptors at the end."""

    error_file: str
    """Empty: none."""
    stale_error: tuple[int, int, int] | None = None
    """Stamp of the error file that an earlier worker left there; None: there is none."""
    stderr_file: str = ""
    """File that gets standard error; empty: none."""
    stdout_fd: int = -1
    stderr_fd: int = -1
    streams: list[Stream] = field(default_factory=list)
    """Streams that the agent can read or look up. The last one is always standard error."""

    def __enter__(self) -> Self:
        """Return self; the descriptors are valid inside the context."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the agent's copies, so that the streams end with the worker."""
        self.close()

    def add(self, fd: int, stream: Stream) -> int:
        """Add a stream; return the worker's descriptor of it."""
        self.streams.append(stream)
        return fd

    def close(self) -> None:
        """Close the agent's copies of the descriptors."""
        for fd in (self.stdout_fd, self.stderr_fd):
            if fd >= 0:
                os.close(fd)

    @property
    def is_file(self) -> bool:
        """True when `tail` and `silent_ms` ask a file system, which may block."""
        return self.streams[-1].is_file

    def tail(self) -> str:
        """Return the end of standard error, from the beginning of a line if possible."""
        return self.streams[-1].tail()

    def silent_ms(self) -> int:
        """Return the milliseconds since the worker last wrote to standard error."""
        return self.streams[-1].silent_ms()

    def hurry(self) -> None:
        """Note that the worker has ended."""
        for stream in self.streams:
            stream.hurry()

    async def wait_end(self, limit_s: float) -> None:
        """Wait until every writer has closed standard error, for at most `limit_s` seconds.

        A little longer if what was written is still being read.
        """
        await self.streams[-1].wait_end(limit_s)
        await self.streams[-1].catch_up(LATE_S_MAX)


class WorkerOutputs(Struct):
    """The output of this node's workers.

    `begin` and `open` ask file systems, which may block: call them in a thread, the same each time.
    """

    spec: OutputSpec
    consoles: Consoles
    folder: LogFolder
    node_name: Callable[[], str]
    """Called when a round starts."""
    reify: Callable[[RunOrder], Destinations] | None = None
    """A plug-in's assignment of destinations; None: the flags assign them."""
    _destinations: Destinations = field(default_factory=Destinations)
    _streams: list[Stream] = field(default_factory=list)
    """Streams that had not ended when the last round began."""
    _is_folder_logged: bool = False

    def begin(self, order: RunOrder) -> None:
        """Assign the destinations of a round's workers, and make the folders.

        Raises:
            OSError: they cannot be made.
        """
        self._streams = [stream for stream in self._streams if not stream.has_ended()]
        if self.reify is not None:
            self._destinations = self.reify(order)
        else:
            folder = self.folder.begin(order, self.node_name())
            self._destinations = assign_destinations(self.spec, order, folder)
        if not self.folder.is_temporary:  # where an empty file would only keep its folder
            for path in filtered_files(self._destinations, self.spec):
                os.close(open_file(path))  # as torchrun does, even if no stream is tee'd

    def log_folder(self) -> None:
        """Log where the files are, once there are any."""
        if self._is_folder_logged or self.folder.path is None:
            return
        self._is_folder_logged = True
        if self.spec.redirects or self.spec.tee:
            log.info("log_folder_created", folder=str(self.folder.path))

    def terminals(self, order: RunOrder, local_rank: int) -> tuple[bool, bool]:
        """Return which of a worker's streams are terminals, as the flags assign them."""
        folder = os.curdir if self.folder.has_files else None  # any: nothing is opened
        destinations = assign_destinations(self.spec, order, folder)
        out, err = compute_routes(destinations, self.spec, order, local_rank, self.node_name())
        return (
            out == Route() and os.isatty(self.consoles.out.fd),
            err == Route() and os.isatty(self.consoles.err.fd),
        )

    def open(
        self, order: RunOrder, local_rank: int, loop: asyncio.AbstractEventLoop | None = None
    ) -> WorkerOutput:
        """Open the streams of one worker.

        Args:
            order: the round.
            local_rank: the worker's number on the node.
            loop: the agent's event loop; None: the running one.

        Raises:
            OSError: a file or a pipe cannot be opened.
        """
        out, err = compute_routes(
            self._destinations, self.spec, order, local_rank, self.node_name()
        )
        loop = loop or asyncio.get_running_loop()
        error_file = self._destinations.error_files.get(local_rank, os.devnull)
        error_file = "" if error_file == os.devnull else error_file
        output = WorkerOutput(error_file, stderr_file=err.file)
        try:
            if out == Route():
                output.stdout_fd = os.dup(self.consoles.out.fd)
            elif out == Route(is_shown=False):
                output.stdout_fd = os.open(os.devnull, os.O_WRONLY)
            else:
                output.stdout_fd = output.add(*_open_stream(out, self.consoles.out, loop))
            output.stderr_fd = output.add(*_open_stream(err, self.consoles.err, loop))
        except OSError:
            output.close()
            raise
        finally:
            self._streams += output.streams
        return output

    async def finish(self) -> None:
        """Drain the workers' output after all of them have ended; takes a bounded time."""
        for stream in self._streams:
            stream.hurry()
        await self._drain()
        try:
            await FileThread("consoles").begin(self._flush).future
        except OSError:  # no thread can be started here: the loop stands still until the end
            self._flush()
        for console in (self.consoles.out, self.consoles.err):
            console.release()
        await self._drain()

    async def _drain(self) -> None:
        await asyncio.gather(*(stream.wait_end(DRAIN_LIMIT_S) for stream in self._streams))

    def _flush(self) -> None:
        end_s = time.monotonic() + END_LIMIT_S
        for console in (self.consoles.out, self.consoles.err):
            console.flush(end_s - time.monotonic())


def _open_stream(
    route: Route, console: Console, loop: asyncio.AbstractEventLoop
) -> tuple[int, Stream]:
    """Return the worker's descriptor of a stream, and the agent's view of the stream."""
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
        pump = Pump(read_fd, file, shown, loop)
        opened.pop_all()
    return write_fd, pump


def _open_ends(like_fd: int) -> tuple[int, int]:
    """Return two ends, to read and to write: of a terminal if `like_fd` is one, else of a pipe."""
    if like_fd >= 0 and os.isatty(like_fd):
        try:
            return open_terminal(like_fd)
        except OSError as error:  # a container may have no terminals; colours are not worth a job
            log.debug("terminal_not_opened", error=str(error), then="workers write to a pipe")
    return os.pipe()
