"""The agent's own folder, for sockets, notices and the FIFO of timers. Removed when it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.dead_folders import (
    PREFIX,
    lock_folder,
    note_logs,
    remove_dead_folders,
)
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

SOCKET_PATH_BYTES_MAX = 107
"""sizeof sun_path in unix(7), without the NUL."""
_SOCKET_BELOW = len("/1000000/1000/server")
"""Longest path of a worker's socket below the folder."""
REMOVAL_WAIT_S = 2.0
"""How long the end of the agent waits for the removal of its folders."""


class OwnFolder:
    """A temporary folder, made when it is first needed. Two threads may ask for it."""

    def __init__(self, spare: Callable[[], Path | None]) -> None:
        """Set an alternative location.

        Args:
            spare: returns the parent folder to use if no temporary folder can be made, or None.
        """
        self._spare = spare
        self._path: Path | None = None
        self._held_fd = -1
        """Holds the lock by which other agents know that this one lives."""
        self._lock = threading.Lock()

    def path(self) -> Path:
        """Return the folder.

        Raises:
            OSError: it cannot be made.
        """
        with self._lock:
            if self._path is None:
                self._path = self._make()
            return self._path

    def _make(self) -> Path:
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX))
        except OSError:  # full, or read-only; logs may be elsewhere
            spare = self._spare()
            if spare is None:
                raise
            path = Path(tempfile.mkdtemp(prefix="own_", dir=spare))
        else:
            with suppress(OSError):  # no locks here: nothing but this agent removes the folder
                self._held_fd = lock_folder(path)
        if not self._has_sockets(path):
            why = "too long for a socket: set a shorter TMPDIR"
            log.warning("worker_server_disabled", folder=str(path), why=why)
        return path

    def socket_path(self, number: int, local_rank: int) -> str:
        """Return the path for the socket of a worker of round `number`; "" if there can be none.

        A full disk must not keep the worker from starting.

        Raises:
            OSError: there is no folder at all.
        """
        folder = self.path() / str(number) / str(local_rank)
        if not self._has_sockets(self.path()):
            return ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("worker_server_disabled", folder=str(folder), why=str(error))
            return ""
        return str(folder / "server")

    def armed_prefix(self, number: int, local_rank: int) -> str:
        """Return the prefix of the files by which a worker shows what it does; "": there are none.

        Raises:
            OSError: there is no folder at all.
        """
        folder = self.path() / str(number) / str(local_rank)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:  # a full disk must not keep the worker from starting
            log.warning("worker_not_armed", folder=str(folder), why=str(error))
            return ""
        return str(folder / "w")

    def note_logs(self, logs: Path) -> None:
        """Note which temporary folder the logs have, for an agent that finds this one dead."""
        with suppress(OSError):  # a full disk must not keep workers from starting
            note_logs(self.path(), logs)

    def end_rounds(self, last: int) -> None:
        """Remove the folders of rounds up to `last`: sockets and notices of their workers."""
        if self._path is None:
            return
        for folder in self._path.iterdir():
            if folder.name.isdecimal() and int(folder.name) <= last:
                shutil.rmtree(folder, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder with its content, as far as possible."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._held_fd >= 0:
            os.close(self._held_fd)
            self._held_fd = -1

    @staticmethod
    def _has_sockets(folder: Path) -> bool:
        return len(os.fsencode(folder)) + _SOCKET_BELOW <= SOCKET_PATH_BYTES_MAX


class Folders:
    """Removes the folders of this agent, and what dead ones have left."""

    def __init__(
        self,
        outputs: WorkerOutputs,
        files: FileThread,
        own: OwnFolder,
        own_files: FileThread,
    ) -> None:
        """Take them.

        Args:
            outputs: has the one for output.
            files: the thread for that one.
            own: the agent's own.
            own_files: the thread for that one.
        """
        self._outputs = outputs
        self._files = files
        self._own = own
        self._own_files = own_files

    async def remove_dead(self) -> None:
        """Remove those that dead agents have left."""
        # OSError: there is no such folder, so no agent has left one there. ValueError: a name that
        # no system can take. What is only tidied up must not end an agent.
        with suppress(OSError, ValueError):
            sweep = partial(remove_dead_folders, Path(tempfile.gettempdir()))
            folders = await self._own_files.run("removing folders of dead agents", sweep)
            if folders:
                log.info("dead_folders_removed", folders=folders, why="their agent is dead")

    async def check(self, workers: int) -> None:
        """Find out whether the folders and files of so many workers can be made.

        Raises:
            OSError: they cannot.
        """
        await self._files.run("making folders", partial(self._outputs.folder.check, workers))
        await self._own_files.run("making a folder", self._own.path)

    def end_round(self, number: int) -> None:
        """Remove what a round that is over has left: sockets, and empty folders. Do not wait."""
        with suppress(OSError):  # the thread stands still: what is only tidied up can wait
            self._files.submit(self._outputs.folder.end_round)
            self._own_files.submit(partial(self._own.end_rounds, number))

    async def close_logs(self) -> None:
        """Remove the empty folders for output, if they are temporary ones."""
        await self._close(self._files, "removing empty folders", self._outputs.folder.close)

    async def remove_own(self) -> None:
        """Remove the agent's own folder."""
        await self._close(self._own_files, "removing a folder", self._own.remove)

    async def _close(self, files: FileThread, doing: str, close: Callable[[], None]) -> None:
        try:
            async with asyncio.timeout(REMOVAL_WAIT_S):
                await files.run(doing, close)
        except (TimeoutError, OSError):
            why = f"the file system does not answer within {REMOVAL_WAIT_S:g} s"
            log.warning("folder_not_removed", why=why)
