"""The agent's own folder: sockets, notices and the timers' pipe, which are gone when it ends."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from rallypoint.wire.log import get_logger

log = get_logger()

SOCKET_PATH_BYTES_MAX = 107
"""sizeof sun_path in unix(7), without the NUL."""
_SOCKET_BELOW = len("/1000000/1000/server")
"""Room for the socket of a worker below the folder."""


class OwnFolder:
    """Made among the temporary files when it is first needed."""

    def __init__(self, spare: Callable[[], Path | None]) -> None:
        """Take a second place.

        Args:
            spare: returns a folder to lie below where no temporary file can be made, or None.
        """
        self._spare = spare
        self._path: Path | None = None

    def path(self) -> Path:
        """Return the folder.

        Raises:
            OSError: it cannot be made.
        """
        if self._path is None:
            try:
                self._path = Path(tempfile.mkdtemp(prefix="rallypoint_"))
            except OSError:  # full, or read-only; logs may be elsewhere
                spare = self._spare()
                if spare is None:
                    raise
                self._path = Path(tempfile.mkdtemp(prefix="own_", dir=spare))
            if not self._has_sockets(self._path):
                why = "too long for a socket: set a shorter TMPDIR"
                log.warning("worker_server_off", folder=str(self._path), why=why)
        return self._path

    def socket_path(self, number: int, local_rank: int) -> str:
        """Return where a worker of round `number` may open a socket; "" where it cannot: a full
        disk is no reason to start nothing.

        Raises:
            OSError: there is no folder at all.
        """
        folder = self.path() / str(number) / str(local_rank)
        if not self._has_sockets(self.path()):
            return ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("worker_server_off", folder=str(folder), why=str(error))
            return ""
        return str(folder / "server")

    def remove(self) -> None:
        """Remove it with all that is in it, as far as that can be done."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)

    @staticmethod
    def _has_sockets(folder: Path) -> bool:
        return len(os.fsencode(folder)) + _SOCKET_BELOW <= SOCKET_PATH_BYTES_MAX
