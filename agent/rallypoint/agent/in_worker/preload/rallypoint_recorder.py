"""Notes which modules a program imports, for the forkserver of a later round.

See sitecustomize.py.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOTED_TOGETHER = 64
"""How many names of modules are written at once."""
NOTE_EVERY_S = 0.01
"""A name that comes so long after the last write is written at once, with those before it. What an
end by SIGKILL can lose is less: names of one burst."""


class Recorder:
    """A finder that finds nothing and notes the name of every module that is imported."""

    def __init__(self, path: str) -> None:
        """Note into this file."""
        import atexit

        bootstrap = sys.modules["_frozen_importlib"]
        self._locks: dict[str, Any] | None = getattr(bootstrap, "_module_locks", None)
        """Of the modules that are being imported, by name; None: this Python does not tell."""
        self._path = path
        self._names: list[str] = []
        self._written_s = 0.0
        atexit.register(self._write)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Note the name; another finder finds the module."""
        import time

        if self._locks is not None and name not in self._locks:
            return  # importlib.util.find_spec: it may never be imported
        self._names.append(name)
        now_s = time.monotonic()
        if len(self._names) < NOTED_TOGETHER and now_s - self._written_s < NOTE_EVERY_S:
            return
        self._written_s = now_s
        self._write()

    def _write(self) -> None:
        names, self._names = self._names, []
        if not names:
            return
        try:  # opened each time: the program may close descriptors that it does not know
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, "".join(one + "\n" for one in names).encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:  # the round is over, or the disk is full: only the next start is slower
            pass
