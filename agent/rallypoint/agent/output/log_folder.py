"""The folders for the output of workers: one for each agent, and below it one for each round.

    <log dir>/<job>_<node>_<random>/attempt_<restart count>/<local rank>/

A later round with the same restart count gets `attempt_<restart count>_round_<number>`, so that no
round overwrites an earlier one. Without a log dir the folder is a temporary one; its empty folders
are removed when their round is over, and at exit.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path

from rallypoint.agent.core.desired import RunOrder

CHECK_PREFIX = "check_"
FILES = ("stdout", "stderr", "error")
"""As many files as a worker may have."""
NAME_CHARS_MAX = 64
"""Characters of a job's or node's name in a folder's name; file systems allow 255 in all."""


class LogFolder:
    """The folder of this agent, made when the first round needs it."""

    def __init__(self, log_dir: str, job_id: str) -> None:
        """Set the parts of the folder's name.

        Args:
            log_dir: parent of the folder; empty: the folder for temporary files; os.devnull: no
                folder is made.
            job_id: any text.
        """
        self._log_dir = log_dir
        self._job_id = job_id
        self.path: Path | None = None
        self._last: Path | None = None
        """The folder of the last round."""

    @property
    def is_temporary(self) -> bool:
        """True if the folder lies among the temporary files."""
        return not self._log_dir

    @property
    def has_files(self) -> bool:
        """False if no folder is made."""
        return self._log_dir != os.devnull

    def begin(self, order: RunOrder, node: str) -> str | None:
        """Make the folders of a round and its workers; return the round's, or None for no files.

        Raises:
            OSError: they cannot be made.
        """
        if not self.has_files:
            return None
        if self.path is None:
            prefix = f"{_as_name(self._job_id)}_{_as_name(node)}_"
            prefix = prefix if self._log_dir else f"rallypoint_{prefix}"
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._log_dir or None))
        folder = self.path / f"attempt_{order.header.restart_count}"
        if folder.exists():
            folder = self.path / f"attempt_{order.header.restart_count}_round_{order.number}"
        self._last = folder
        for local_rank in range(order.assignment.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True)
        return str(folder)

    def check(self, workers: int) -> None:
        """Find out whether the folders and files of so many workers can be made.

        The files are open together, because a start needs about as many descriptors.

        Raises:
            OSError: they cannot.
        """
        if not self.has_files:
            return
        parent = self.path or self._log_dir or None
        with ExitStack() as opened:
            new = tempfile.TemporaryDirectory(prefix=CHECK_PREFIX, dir=parent)
            folder = opened.enter_context(new)
            for local_rank in range(workers):
                below = Path(folder) / str(local_rank)
                below.mkdir()
                for name in FILES:
                    opened.enter_context((below / name).open("xb"))

    def end_round(self) -> None:
        """Remove the empty folders of the last round, if they are temporary ones."""
        last, self._last = self._last, None
        if self.is_temporary and last is not None:
            remove_empty_folders(last)

    def close(self) -> None:
        """Remove the empty folders, if the folder is a temporary one."""
        if self.is_temporary and self.path is not None:
            remove_empty_folders(self.path)


def remove_empty_folders(path: Path) -> None:
    """Remove a folder, and each one below it, unless it holds a file."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass  # it is not empty


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:NAME_CHARS_MAX]
