"""A TCP forwarder between agents and a coordinator, which can cut, refuse, and go silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Self

from support.processes.feed import LIMIT_S

TURNS = 4
"""Turns of the event loop in which a connection that has arrived is certainly accepted."""


class Proxy:
    """Forwards connections to `address` to `target`, in a thread."""

    def __init__(self, target: str) -> None:
        """Start to listen on a free port of the loopback interface."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        """Connections whose other half is being opened."""
        self._ends: list[_End] = []
        """Both ends of every connection, the agent's first, oldest first."""
        self._is_silent = False
        self._withholds = False
        self._accepted = 0
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        self._do(self._listen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._finish)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

    @property
    def address(self) -> str:
        """host:port for agents."""
        return f"127.0.0.1:{self._port}"

    def cut(self, refuse_s: float = 0) -> None:
        """Reset every connection at once, and refuse new ones for a while."""

        async def cut() -> None:
            self._withholds = False
            await self._close()
            self._loop.call_later(refuse_s, lambda: asyncio.ensure_future(self._listen()))  # noqa: TID251

        self._do(cut)

    def withhold_answers(self) -> None:
        """Forward only what agents send, until the next cut: so what they are answered is lost."""

        async def withhold() -> None:
            self._withholds = True
            for end in self._ends:
                if end.is_onward:
                    end.pause()

        self._do(withhold)

    def fall_silent(self) -> None:
        """Stop forwarding without closing anything; new connections get no answer."""

        async def fall_silent() -> None:
            self._is_silent = True
            for end in self._ends:
                end.pause()

        self._do(fall_silent)

    def speak(self) -> None:
        """Forward again, starting with what was held back."""

        async def speak() -> None:
            self._is_silent = False
            for end in self._ends:
                end.resume()

        self._do(speak)

    def wait_accepted(self, count: int) -> None:
        """Wait until so many connections have been taken."""
        with self._changed:
            in_time = self._changed.wait_for(lambda: self._accepted >= count, LIMIT_S)
        assert in_time, f"{self._accepted} of {count} connections came"

    def _do(self, make: Callable[[], object]) -> None:
        asyncio.run_coroutine_threadsafe(make(), self._loop).result(LIMIT_S)  # type: ignore[arg-type]

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(
            lambda: _End(self), "127.0.0.1", self._port, reuse_address=True
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            # A server that is closed between a connection's arrival and its transport leaves the
            # socket open (CPython 3.11). So it stops to listen first.
            for listener in self._server.sockets:
                self._loop.remove_reader(listener.fileno())
            for _ in range(TURNS):
                await asyncio.sleep(0)
            self._server.close()
        for end in list(self._ends):
            end.abort()

    async def _finish(self) -> None:
        """Close everything, also connections that are just being accepted or opened."""
        await self._close()
        for _ in range(TURNS):
            await asyncio.sleep(0)
            for end in list(self._ends):
                end.abort()
        while self._connecting:
            await asyncio.wait(self._connecting)
        await asyncio.sleep(0)

    def begin_to_connect(self, end: _End) -> None:
        """Begin to open the other half of a connection."""
        task = self._loop.create_task(self._connect(end))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, end: _End) -> None:
        """Open the other half of a connection."""
        try:
            _, other = await self._loop.create_connection(lambda: _End(self, end), *self._target)
        except OSError:
            end.abort()
            return
        end.join(other)

    def opened(self, end: _End) -> None:
        """Register one end of a connection."""
        self._ends.append(end)
        if self._is_silent or (self._withholds and end.is_onward):
            end.pause()
        if not end.is_onward:
            with self._changed:
                self._accepted += 1
                self._changed.notify_all()

    def closed(self, end: _End) -> None:
        """Forget one end of a connection."""
        self._ends.remove(end)


class _End(asyncio.Protocol):
    """One end of a connection; what it reads, the other end writes."""

    def __init__(self, proxy: Proxy, other: _End | None = None) -> None:
        self._proxy = proxy
        self._other = other
        self.is_onward = other is not None
        """It leads to the coordinator."""
        self._early: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._proxy.opened(self)
        if self._other is None:
            self._proxy.begin_to_connect(self)

    def join(self, other: _End) -> None:
        """Start to copy, now that the other end exists."""
        self._other = other
        for data in self._early:
            other.write(data)
        self._early.clear()
        if self._transport is None or self._transport.is_closing():
            other.abort()

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
        else:
            self._other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.closed(self)
        if self._other is not None:
            self._other.abort()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
