"""Assigns destinations to the output of workers: classes that a program may replace."""

from __future__ import annotations

import abc
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rallypoint.agent.output.destinations import Choice, OutputSpec

logger = logging.getLogger(__name__)

_MAPPING = r"(\d{1,9}:[0-3],)*\d{1,9}:[0-3]"


class Std(IntFlag):
    """Streams of a worker, with the numbers of the command line."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Parse "3" for all workers, or "0:3,1:2" for these local ranks.

        Raises:
            ValueError: the text is neither.
        """
        if re.fullmatch("[0-3]", vm):
            return cls(int(vm))
        if re.fullmatch(_MAPPING, vm, flags=re.ASCII):
            pairs = (part.split(":") for part in vm.split(","))
            return {int(rank): cls(int(streams)) for rank, streams in pairs}
        raise ValueError(f"{vm!r} is neither 0, 1, 2 or 3 nor a list such as 0:3,1:2")


StdChoice = Std | dict[int, Std]
"""Streams of all workers, or by local rank."""


def to_map(val_or_map: StdChoice, local_world_size: int) -> dict[int, Std]:
    """Return the streams by local rank, for ranks 0 to `local_world_size` - 1."""
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}


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
        redirects: StdChoice = Std.NONE,
        tee: StdChoice = Std.NONE,
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
    subclass. A folder that is not given is made when it is first used; with os.devnull there are no
    files.
    """

    _run_log_dir: str | None = None
    """Made in the first round."""

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: StdChoice = Std.NONE,
        tee: StdChoice = Std.NONE,
        local_ranks_filter: set[int] | None = None,
    ) -> None:
        """Keep the choices, and make a folder that is given.

        Raises:
            NotADirectoryError: the folder is a file.
            OSError: the folder cannot be made.
        """
        if log_dir and log_dir != os.devnull:
            if os.path.isfile(log_dir):
                raise NotADirectoryError(f"log_dir {log_dir} is a file: give a folder")
            os.makedirs(log_dir, exist_ok=True)
        super().__init__(log_dir or None, redirects, tee, local_ranks_filter)

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
        from msgspec.structs import asdict

        from rallypoint.agent.core.desired import without_round
        from rallypoint.agent.output.destinations import assign_destinations

        folder = None if self._root_log_dir == os.devnull else self._make_attempt_folder(envs)
        found = assign_destinations(self.output(), without_round(len(envs), ""), folder)
        for rank, env in envs.items():
            env["TORCHELASTIC_ERROR_FILE"] = "" if folder is None else found.error_files[rank]
        return LogsDest(**asdict(found))

    def output(self) -> OutputSpec:
        """Return the choices as the agent takes them."""
        from rallypoint.agent.output.destinations import OutputSpec, Ranks

        return OutputSpec(
            log_dir=os.path.abspath(self._root_log_dir) if self._root_log_dir else "",
            redirects=_choose(self._redirects),
            tee=_choose(self._tee),
            shown_local=tuple(Ranks(one, one) for one in sorted(self._local_ranks_filter or ())),
        )

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
        for rank in range(len(envs)):
            os.makedirs(os.path.join(folder, str(rank)))
        return folder

    def __repr__(self) -> str:
        """Return the choices."""
        names = ("log_dir", "redirects", "tee", "local_ranks_filter")
        pairs = zip(names, self._choices, strict=True)
        return f"DefaultLogsSpecs({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    @property
    def _choices(self) -> tuple[str | None, StdChoice, StdChoice, set[int] | None]:
        return self._root_log_dir, self._redirects, self._tee, self._local_ranks_filter

    def __eq__(self, other: object) -> bool:
        """Return whether the choices are the same."""
        return isinstance(other, DefaultLogsSpecs) and self._choices == other._choices

    __hash__ = None  # type: ignore[assignment]  # the choices may change


def _choose(streams: StdChoice) -> tuple[Choice, ...]:
    from rallypoint.agent.output.destinations import ALL, Choice, Ranks, Streams

    if isinstance(streams, dict):
        return tuple(Choice(Ranks(rank, rank), Streams(int(one))) for rank, one in streams.items())
    return (Choice(ALL, Streams(int(streams))),) if streams else ()
