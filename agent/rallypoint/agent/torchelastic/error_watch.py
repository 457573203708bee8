"""Finds the errors that running workers record, before the workers end.

A worker may record its error and then hang in its clean-up. It has failed when it says so. So the
error files of running workers are looked at several times a second, because the standard library
cannot watch files. One look costs a `stat` for each worker, in the thread for files. The next look
begins only after the last one has returned: a file system that stands still delays only itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.torchelastic.error_files import FileStamp, read_error_file, read_stamp
from rallypoint.base.file_thread import FileThread

INTERVAL_S = 0.25
"""Between two looks. A failure that is found so late is still reported within a second."""
DOING = "looking for the errors of running workers"


class ErrorFile(Struct):
    """The error file of one running worker. Only the thread of the watch changes it."""

    path: str
    stale: FileStamp | None
    """The file that an earlier worker left there; None: there was none."""
    empty_ns: int
    """Monotonic time when it held no record of this worker for the last time, as far as known."""
    seen: FileStamp | None = None
    """The file when it was last read and held no record; None: it was not."""

    def read(self, seen_s: float, seen_ns: int) -> ErrorRecord | None:
        """Return the worker's record; None without one, or with half of one. May block.

        Its age is at most the time since there was none: a file on a shared file system may have
        its time from another clock.

        Args:
            seen_s: Unix time to which its age is counted, in seconds.
            seen_ns: the same moment in monotonic time.
        """
        age_ms_max = max(0, seen_ns - self.empty_ns) // 1_000_000
        return read_error_file(Path(self.path), seen_s, age_ms_max=age_ms_max, stale=self.stale)

    def look(self) -> bool:
        """Return whether the file holds something that was not read yet. May block."""
        began_ns = time.monotonic_ns()
        stamp = read_stamp(Path(self.path))
        if stamp in (None, self.stale, self.seen):
            self.empty_ns = began_ns
            return False
        self.seen = stamp
        return True


class Found(Struct, frozen=True):
    """The error that a running worker recorded."""

    key: int
    error: ErrorRecord
    """With its age when it was found."""
    seen_ns: int
    """Monotonic time when it was found."""


class ErrorWatch:
    """Watches the error files of running workers."""

    def __init__(
        self, files: FileThread, tasks: asyncio.TaskGroup, found: Callable[[Found], None]
    ) -> None:
        """Begin without workers.

        Args:
            files: looks at the files.
            tasks: runs the looks.
            found: learns of the error of each worker, once.
        """
        self._files = files
        self._tasks = tasks
        self._found = found
        self._watched: dict[int, ErrorFile] = {}
        """By the worker's key, until its error is found or it ends."""
        self._timer: asyncio.TimerHandle | None = None
        """The next look; None while one runs, or without workers."""
        self._is_looking = False

    def watch(self, key: int, file: ErrorFile) -> None:
        """Watch the error file of a worker that has just been started."""
        self._watched[key] = file
        self._set_timer()

    def forget(self, key: int) -> None:
        """Stop watching a worker that ends."""
        self._watched.pop(key, None)

    def close(self) -> None:
        """Stop watching all workers."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        if self._watched and self._timer is None and not self._is_looking:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._watched:
            self._is_looking = True
            self._tasks.create_task(self._look())

    async def _look(self) -> None:
        try:
            look = partial(look_at, tuple(self._watched.items()))
            for found in await self._files.run(DOING, look):
                if self._watched.pop(found.key, None) is not None:  # else it has ended meanwhile
                    self._found(found)
        except OSError:
            pass  # the thread is busy with a file system that stands still; the next look is soon
        finally:
            self._is_looking = False
            self._set_timer()


def look_at(watched: tuple[tuple[int, ErrorFile], ...]) -> list[Found]:
    """Return the records in the error files of workers, by key. May block."""
    found: list[Found] = []
    for key, file in watched:
        if not file.look():
            continue
        seen_ns = time.monotonic_ns()
        seen_s = time.time()  # noqa: TID251  # compared with the time of the file
        error = file.read(seen_s, seen_ns)
        if error is None:  # it is still being written, or is no JSON at all
            file.empty_ns = seen_ns
        else:
            found.append(Found(key, error, seen_ns))
    return found
