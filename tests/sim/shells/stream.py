"""One stream of one call: serialized messages in both directions, with a small window.

As over HTTP/2, messages of a direction arrive in order, once or not at all; a writer waits while
the window is full; the status of a call follows its last message. A stream may be cut: what is in
flight is lost, and each side learns of it after a while, or only by its own clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random

import grpc
from msgspec import Struct

from sim.shells.loop import Schedule


class Status(Struct, frozen=True):
    """The end of a call, as its client sees it."""

    code: grpc.StatusCode
    details: str = ""
    trailing: tuple[tuple[str, str | bytes], ...] = ()


OK = Status(grpc.StatusCode.OK)
RESET = Status(grpc.StatusCode.UNAVAILABLE, "Socket closed")
CANCELLED = Status(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")

Delay = Callable[[], float]
"""Draws how long the next message takes, in seconds."""


class Pipe:
    """One direction."""

    def __init__(self, schedule: Schedule, window: int, delay: Delay) -> None:
        self._schedule = schedule
        self._window = window
        self._delay = delay
        self._flying: deque[bytes | Status] = deque()
        self._arrived: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._clear_ns = 0
        """When the last message arrives: none overtakes it."""
        self.held_until: Callable[[], int] = lambda: 0
        """Returns the time before which nothing arrives."""
        self.on_status: Callable[[Status], None] = lambda status: None
        self.is_cut = False
        """Nothing of what is sent arrives any more."""
        self.has_ended = False
        """The reader gets nothing after what has arrived."""
        self.is_broken = False
        """Writes fail."""

    def _has_room(self) -> bool:
        return len(self._flying) + len(self._arrived) < self._window

    @property
    def has_unread(self) -> bool:
        """Whether a message has arrived that was not read."""
        return bool(self._arrived)

    async def put(self, raw: bytes) -> bool:
        """Send a message once there is room; return whether the stream still takes any."""
        while not self.is_broken and not self._has_room():
            writer = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer
        if not self.is_broken:
            self.send(raw)
        return not self.is_broken

    def send(self, item: bytes | Status) -> None:
        """Send without waiting for room."""
        self._flying.append(item)
        if self.is_cut:
            return
        self._clear_ns = max(self._clear_ns, self._schedule.now_ns + int(self._delay() * 1e9))
        delay_s = (self._clear_ns - self._schedule.now_ns) / 1e9
        self._schedule.after(delay_s, self._arrive)

    def _arrive(self) -> None:
        if self.is_cut or not self._flying:
            return
        held_ns = self.held_until()
        if held_ns > self._schedule.now_ns:
            self._schedule.after((held_ns - self._schedule.now_ns) / 1e9, self._arrive)
            return
        item = self._flying.popleft()
        if isinstance(item, Status):
            self.on_status(item)
        elif not self.has_ended:
            self._arrived.append(item)
        self._wake_reader()

    async def get(self) -> bytes | None:
        """Return the next message; None when the stream has ended."""
        while not self._arrived and not self.has_ended:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not self._arrived:
            return None
        raw = self._arrived.popleft()
        self._wake_writer()
        return raw

    def cut(self) -> None:
        """Lose what is in flight, and all that follows."""
        self.is_cut = True

    def finish_reads(self, *, keeps_arrived: bool = True) -> None:
        """Let reads end after what has arrived, or without that."""
        self.has_ended = True
        if not keeps_arrived:
            self._arrived.clear()
        self._wake_reader()

    def refuse_writes(self) -> None:
        """Let writes fail."""
        self.is_broken = True
        while self._writers:
            _wake(self._writers.popleft())

    def _wake_writer(self) -> None:
        """Let the next writer that still waits look for room."""
        while self._writers and self._writers[0].done():
            self._writers.popleft()
        if self._writers and self._has_room():
            _wake(self._writers.popleft())

    def _wake_reader(self) -> None:
        if self._reader is not None:
            _wake(self._reader)
            self._reader = None


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    loop.call_soon(task.cancel)


class Stream:
    """One call between an agent and a life of the coordinator."""

    def __init__(self, schedule: Schedule, rng: Random, window: int, delay: Delay) -> None:
        self.schedule = schedule
        self.rng = rng
        self.method = ""
        """Path of what was called."""
        self.up = Pipe(schedule, window, delay)
        self.down = Pipe(schedule, window, delay)
        self.down.on_status = self.end_client
        self.status: Status | None = None
        """The end, as the client knows it; None before."""
        self._ended = asyncio.Event()
        """Set with the status."""
        self.server_task: asyncio.Task[None] | None = None
        self.is_over_at_server = False
        """The handler has ended, or cannot reach the client any more."""

    @property
    def is_over(self) -> bool:
        """True when both sides know that the stream has ended."""
        return self.status is not None and self.is_over_at_server

    def end_client(self, status: Status) -> None:
        """Let the client know the end."""
        if self.status is None:
            self.status = status
            self._ended.set()
            self.up.refuse_writes()
            self.down.finish_reads()

    async def end(self) -> Status:
        """Wait until the client knows the end; return it."""
        await self._ended.wait()
        assert self.status is not None
        return self.status

    def cut(self, *, client_s: float | None, server_s: float | None) -> None:
        """Break the stream; each side learns of it after so long, or (None) not at all."""
        self.up.cut()
        self.down.cut()
        if client_s is not None:
            self.schedule.after(client_s, lambda: self.end_client(RESET))
        if server_s is not None:
            self.schedule.after(server_s, self.end_server)

    def cancel(self) -> None:
        """Cancel the call at the client; that follows what was sent, or overtakes it."""
        if self.status is not None:
            return
        self.status = CANCELLED
        self._ended.set()
        self.up.refuse_writes()
        self.down.finish_reads(keeps_arrived=False)
        self.down.cut()
        if self.up.is_cut:
            return  # no word of it passes
        if self.rng.random() < 0.5:
            self.up.cut()
            self.schedule.after(self.rng.random() / 100, self.end_server)
        else:
            self.up.on_status = lambda status: self.end_server()
            self.up.send(CANCELLED)

    def end_server(self) -> None:
        """Let the server know that the client is gone: reads end, writes fail, the task too."""
        if self.is_over_at_server:
            return
        self.is_over_at_server = True
        keeps_arrived = self.rng.random() < 0.5
        if self.server_task is not None:
            task = self.server_task
            loop = task.get_loop()
            delay_s = self.rng.choice((None, 0, 0, 0.001))
            if delay_s is None:  # before its reads and writes end
                _cancel(loop, task)
            else:
                self.schedule.after(delay_s, lambda: _cancel(loop, task))
        self.up.finish_reads(keeps_arrived=keeps_arrived)
        self.up.cut()
        self.down.refuse_writes()
