"""The notice file of a round: its announced events. It exists while there is a notice.

A script checks whether the file that RALLYPOINT_NOTICE_FILE names exists, which takes a microsecond
a step. The file is replaced atomically, so a reader never sees half of it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

from rallypoint.agent.core.desired import Notice
from rallypoint.agent.round.own_folder import OwnFolder
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

NAME = "notices.json"
WAIT_S = 1.0
"""How long a signal, and the log line about notices, wait for their file."""


class NoticeWriter:
    """Writes the notices of this node's round, without ever keeping the event loop."""

    def __init__(self, own: OwnFolder, files: FileThread, tasks: asyncio.TaskGroup) -> None:
        """Begin without notices.

        Args:
            own: the folder to write to.
            files: the thread for that folder.
            tasks: runs what takes time.
        """
        self._own = own
        self._files = files
        self._tasks = tasks
        self._last: asyncio.Task[None] | None = None

    @property
    def is_writing(self) -> bool:
        """True until the last notices are written."""
        return self._last is not None and not self._last.done()

    def write(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        """Replace the notices of a round; an empty list removes the file."""
        self._last = self._tasks.create_task(self._write(number, notices, node_name))

    async def written(self) -> None:
        """Wait until the last notices are written, for a moment at most."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=WAIT_S)

    async def _write(self, number: int, notices: Sequence[Notice], node_name: str) -> None:
        def write() -> None:
            write_notices(notice_file(self._own.path(), number), notices, node_name)

        try:
            await self._files.run("writing notices", write)
        except OSError as error:  # a full disk must not end the workers
            log.warning("notices_not_written", round=number, error=str(error))


def notice_file(folder: Path, number: int) -> Path:
    """Return the file of round `number` below the agent's own `folder`."""
    return folder / str(number) / NAME


def write_notices(path: Path, notices: Sequence[Notice], node_name: str) -> None:
    """Write these notices to `path`, soonest first; without any, remove the file.

    Each is an object with `kind` ("growth" or "drain"), `node` (the one that leaves), `here`
    (whether that is this node), `reason`, and `deadline`: when it happens at the latest, in seconds
    of CLOCK_MONOTONIC, which all processes of a machine share (Python: `time.monotonic()`).
    """
    if not notices:
        path.unlink(missing_ok=True)
        return
    content = [
        {
            "kind": notice.kind,
            "node": node_name if notice.is_here else notice.node,
            "here": notice.is_here,
            "reason": notice.reason,
            "deadline": notice.until_ms / 1000,
        }
        for notice in sorted(notices, key=lambda notice: notice.until_ms)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, path)
