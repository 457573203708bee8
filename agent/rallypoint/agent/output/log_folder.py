"""The folders that hold what workers write: one per run of this agent, below it one per round.

    <log dir>/<job>_<node>_<random>/attempt_<restart count>/<local rank>/

A later round with the same restart count gets `attempt_<restart count>_round_<number>`: nothing of
an earlier round is ever touched. Without a log dir the folder is one in the system's folder for
temporary files; what is empty of it is removed in the end.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from rallypoint.agent.core.model import RunOrder

NAME_CHARS_MAX = 64
"""Of a job's or a node's name in a folder's; a file system takes 255 in all."""


class LogFolder:
    """The folder of this agent's run; made when the first round needs it."""

    def __init__(self, log_dir: str, job_id: str) -> None:
        """Take names.

        Args:
            log_dir: where the folder is to be made; empty: among the temporary files; os.devnull:
                there is none.
            job_id: any text.
        """
        self._log_dir = log_dir
        self._job_id = job_id
        self.path: Path | None = None

    def begin(self, order: RunOrder, node: str) -> str | None:
        """Make the folders of a round and its workers; return the round's, or None without files.

        Raises:
            OSError: they cannot be made.
        """
        if self._log_dir == os.devnull:
            return None
        if self.path is None:
            prefix = f"{_as_name(self._job_id)}_{_as_name(node)}_"
            prefix = prefix if self._log_dir else f"rallypoint_{prefix}"
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=self._log_dir or None))
        folder = self.path / f"attempt_{order.restart_count}"
        if folder.exists():
            folder = self.path / f"attempt_{order.restart_count}_round_{order.number}"
        for local_rank in range(order.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True)
        return str(folder)

    def close(self) -> None:
        """Remove what is empty of a folder among the temporary files."""
        if self._log_dir or self.path is None:
            return
        for folder, _, _ in os.walk(self.path, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                pass  # somebody wrote something there


def _as_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:NAME_CHARS_MAX]
