"""Assigns destinations to the output of workers: a class that a program may replace."""

from __future__ import annotations

import abc
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass, field

from rallypoint.elastic.logs.std import Std, to_map

logger = logging.getLogger(__name__)

CONSOLE = ""
"""Instead of a path: the stream goes to the console unchanged."""


@dataclass
class LogsDest:
    """Where the output of a round's workers goes, by local rank."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """A path; empty: the console."""
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """The paths of those that also go to the console, with a prefix on each line."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    """Where a worker records its error."""
    filtered_stdout: str = ""
    """File for the lines that match a filter."""
    filtered_stderr: str = ""


class LogsSpecs(abc.ABC):
    """Assigns destinations to the output of each worker, once per round."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        """Keep the choices.

        Args:
            log_dir: folder for output files.
            redirects: streams that go to a file, for all workers or by local rank.
            tee: streams that go to a file and to the console.
            local_ranks_filter: workers whose output the console shows; None: all.
        """
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abc.abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the destinations for a round.

        Args:
            envs: the variables that each worker gets, by local rank; a change reaches the worker.
        """

    @property
    @abc.abstractmethod
    def root_log_dir(self) -> str:
        """The folder below which all files are."""


class DefaultLogsSpecs(LogsSpecs):
    """Files in a folder for each run, attempt and local rank.

    The agent computes the same destinations by itself, so that `reify` is called only for a
    subclass. A folder that is not given is made when it is first used.
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | dict[int, Std] = Std.NONE,
        tee: Std | dict[int, Std] = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        """Keep the choices, and make a folder that is given.

        Args:
            log_dir: folder for output files; None: a temporary one; os.devnull: no files.
            redirects: streams that go to a file, for all workers or by local rank.
            tee: streams that go to a file and to the console.
            local_ranks_filter: workers whose output the console shows; None: all.

        Raises:
            NotADirectoryError: the folder is a file.
            OSError: the folder cannot be made.
        """
        if log_dir and log_dir != os.devnull:
            if os.path.isfile(log_dir):
                raise NotADirectoryError(f"log_dir {log_dir} is a file: give a folder")
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir or None, redirects, tee, local_ranks_filter)
        self._run_log_dir: str | None = None
        """Made in the first round."""

    @property
    def root_log_dir(self) -> str:
        """The folder below which all files are; a temporary one is made now."""
        if self._root_log_dir is None:
            self._root_log_dir = tempfile.mkdtemp(prefix="rallypoint_")
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return files below `<log_dir>/<run id>_<random>/attempt_<restart count>/<local rank>/`.

        Makes the folders, and sets each worker's TORCHELASTIC_ERROR_FILE.

        Raises:
            OSError: they cannot be made.
        """
        count = len(envs)
        dest = LogsDest(dict.fromkeys(range(count), CONSOLE), dict.fromkeys(range(count), CONSOLE))
        if self._root_log_dir == os.devnull:
            for rank in range(count):
                dest.error_files[rank] = os.devnull
                envs[rank]["TORCHELASTIC_ERROR_FILE"] = ""
            return dest
        folder = self._make_attempt_folder(envs)
        redirects, tees = to_map(self._redirects, count), to_map(self._tee, count)
        for rank in range(count):
            own = os.path.join(folder, str(rank))
            os.makedirs(own)
            self._assign(dest, rank, own, redirects[rank], tees[rank])
            envs[rank]["TORCHELASTIC_ERROR_FILE"] = dest.error_files[rank]
        dest.filtered_stdout = os.path.join(folder, "filtered_stdout.log")
        dest.filtered_stderr = os.path.join(folder, "filtered_stderr.log")
        return dest

    def _make_attempt_folder(self, envs: dict[int, dict[str, str]]) -> str:
        shared = envs.get(0, {})
        if self._run_log_dir is None:
            run_id = shared.get("TORCHELASTIC_RUN_ID", "run").replace(os.sep, "_")
            os.makedirs(self.root_log_dir, exist_ok=True)
            self._run_log_dir = tempfile.mkdtemp(prefix=f"{run_id}_", dir=self.root_log_dir)
            logger.info("log directory set to: %s", self._run_log_dir)
        attempt = shared.get("TORCHELASTIC_RESTART_COUNT", "0")
        folder = os.path.join(self._run_log_dir, f"attempt_{attempt}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        return folder

    def _assign(self, dest: LogsDest, rank: int, own: str, redirects: Std, tee: Std) -> None:
        is_shown = not self._local_ranks_filter or rank in self._local_ranks_filter
        for stream, name, targets, tees in (
            (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
            (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
        ):
            if stream in redirects | tee:
                targets[rank] = os.path.join(own, name)
            elif not is_shown:
                targets[rank] = os.devnull
            if stream in tee and is_shown:
                tees[rank] = targets[rank]
        dest.error_files[rank] = os.path.join(own, "error.json")

    def __repr__(self) -> str:
        """Return the choices."""
        return (
            f"DefaultLogsSpecs(log_dir={self._root_log_dir!r}, redirects={self._redirects!r}, "
            f"tee={self._tee!r}, local_ranks_filter={self._local_ranks_filter!r})"
        )

    @property
    def choices(
        self,
    ) -> tuple[str | None, Std | dict[int, Std], Std | dict[int, Std], set[int] | None]:
        """The folder, if one was given or made; redirected and tee'd streams; shown workers."""
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter

    def __eq__(self, other: object) -> bool:
        """Return whether the choices are the same."""
        return isinstance(other, DefaultLogsSpecs) and self.choices == other.choices

    __hash__ = None  # type: ignore[assignment]  # the choices may change
