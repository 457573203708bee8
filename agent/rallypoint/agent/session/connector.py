"""Opens the agent's connections, and finds out why one does not come about.

The files of the access are read in a thread: a file server that hangs must not stop heartbeats.
Each attempt takes what they have at that moment.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

import grpc.aio

from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger
from rallypoint.wire.access import Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.connecting import Unreachable, connect, find_way
from rallypoint.wire.credentials import READABLE, Credentials, Metadata, find_readable

log = get_logger()

READING = "reading certificates and token"
READ_S_MAX = 5.0
"""How long an attempt waits for the files; the first one fails then, others use what was read."""


class CoordinatorStarter(Protocol):
    """Starts the coordinator before an attempt to connect, if this node has to."""

    async def prepare(self) -> None:
        """Return when an attempt makes sense; raise Dismissed when none ever will."""

    def welcomed(self) -> None:
        """Note that a coordinator serves the agent."""


class Connector:
    """How one agent connects."""

    def __init__(self, access: Access, starter: CoordinatorStarter | None = None) -> None:
        """Keep how the agent proves itself; its files are read at the first attempt."""
        self._access = access
        self._files = FileThread("access")
        self._starter = starter
        self._credentials: Credentials | None = None
        self.addresses: tuple[str, ...] = ()
        """Where the latest channel leads; empty: unknown."""
        self._problem = ""
        """Why renewed files are of no use, as it was logged last."""

    async def open(self, target: str) -> grpc.aio.Channel:
        """Return a new channel to host:port, with the files as they are now.

        Raises:
            AccessFailed: a file is of no use, and there is none from before.
            Unreachable: the files cannot be read, or the name is not resolved, in time.
            Dismissed: no attempt will ever succeed.
        """
        if self._starter is not None:
            await self._starter.prepare()
        credentials = await self._read()
        way = await find_way(target)
        self.addresses = way.host_addresses
        return credentials.open_aio_channel(way, client_options())

    def welcomed(self) -> None:
        """Note that a coordinator serves the agent."""
        if self._starter is not None:
            self._starter.welcomed()

    def metadata(self) -> Metadata:
        """Return the metadata of a session; a channel was opened before."""
        assert self._credentials is not None
        return self._credentials.metadata()

    async def has_newer(self, metadata: Metadata) -> bool:
        """Return whether a refused session had this metadata, and there is a newer token now."""
        credentials = self._credentials
        if credentials is None or not self._access.token_file:
            return False
        try:
            async with asyncio.timeout(READ_S_MAX):
                await self._files.run(READING, credentials.look_now)
        except (TimeoutError, OSError):  # OSError: too many reads wait for the first one
            return False
        return credentials.metadata() != metadata

    async def _read(self) -> Credentials:
        credentials = self._credentials
        if not self._access.has_files:
            if credentials is None:
                credentials = self._credentials = Credentials(self._access)
            return credentials
        try:
            async with asyncio.timeout(READ_S_MAX):
                if credentials is None:
                    self._credentials = await self._files.run(
                        READING, partial(Credentials, self._access)
                    )
                    if path := await self._files.run(READING, partial(find_readable, self._access)):
                        log.warning("secret_exposed", path=path, then=READABLE)
                    return self._credentials
                await self._files.run(READING, credentials.look)
        except (TimeoutError, OSError):
            if credentials is None:
                text = f"certificates and token cannot be read within {READ_S_MAX:g} s"
                raise Unreachable(text) from None
        if credentials.problem != self._problem:
            self._problem = credentials.problem
            if self._problem:
                log.warning("access_not_renewed", why=self._problem, then="the old one counts")
        return credentials

    async def connect(self, channel: grpc.aio.Channel, target: str) -> None:
        """Wait until the channel is ready; fail at the first failure.

        Raises:
            Unreachable: it failed; the text says why, as far as that can be known.
        """
        await connect(channel, target, self._access)
