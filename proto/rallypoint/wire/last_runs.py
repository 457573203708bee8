"""The files that coordinators of single jobs leave when they end: how their jobs went.

Each coordinator leaves one among the user's state, with the host and the port in its name. Only the
user can read it, it is replaced as a whole, and the oldest ones go. Who reads them needs nothing
else of a coordinator.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from rallypoint.base.private_files import FILE_MODE, make_private_folder, open_private
from rallypoint.base.user_folders import (
    find_host_name,
    find_state_home,
    find_temporary_home,
)

FILES_MAX = 16
"""Coordinators of a user whose last runs are kept."""
BYTES_MAX = 4 * 1024 * 1024
"""Further jobs are kept as long as the file is smaller."""
READ_BYTES_MAX = 4 * BYTES_MAX
"""A longer file was not written here."""
FOLDER = "last-runs"
_NAME = re.compile(r"(?P<host>[A-Za-z0-9.-]+)-(?P<port>\d{1,5})-(?P<began>\d+)\.msgpack", re.ASCII)


class LeftJob(Struct, frozen=True):
    """A job as a coordinator has shown it last; encoded messages of the contract."""

    job: bytes
    """Job."""
    summary: bytes
    """JobSummary."""
    runs: bytes
    """ListRunsResponse with all its runs."""
    events: bytes
    """ListEventsResponse with all its events."""


class Left(Struct, frozen=True):
    """What one coordinator has left."""

    left_s: float
    """When, as Unix time."""
    jobs: tuple[LeftJob, ...]
    """The one that ended last comes first."""


def choose_name(port: int) -> str:
    """Return the name of the file of a coordinator that begins to listen at a port."""
    return f"{find_host_name()}-{port}-{time.time_ns() // 1_000_000}.msgpack"


def write(name: str, jobs: tuple[LeftJob, ...]) -> None:
    """Write the file of a coordinator, in place of what it has written before.

    Raises:
        OSError: there is no place for it.
    """
    content = msgspec.msgpack.encode(Left(time.time(), jobs))  # noqa: TID251  # people read it
    failure: OSError | None = None
    for folder in _folders():
        try:
            make_private_folder(folder, may_be_exposed=True)
            _replace(folder / name, content)
        except OSError as error:
            failure = failure or error
        else:
            _prune(folder)
            return
    assert failure is not None
    raise failure


def read(port: int, is_wanted: Callable[[str], bool]) -> list[Left]:
    """Return what coordinators at a port have left, the latest first; damaged files are left out.

    Args:
        port: where they listened.
        is_wanted: says whether it is about a host, by its name.
    """
    found = list[Left]()
    for path in _list():
        match = _NAME.fullmatch(path.name)
        if match and int(match["port"]) == port and is_wanted(match["host"]):
            with suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.msgpack.decode(_read(path), type=Left))
    return sorted(found, key=lambda left: left.left_s, reverse=True)


def _folders() -> tuple[Path, Path]:
    return find_state_home() / FOLDER, find_temporary_home() / FOLDER


def _list() -> Iterator[Path]:
    for folder in _folders():
        with suppress(OSError):
            yield from folder.iterdir()


def _read(path: Path) -> bytes:
    with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
        content = file.read(READ_BYTES_MAX + 1)
    return content if len(content) <= READ_BYTES_MAX else b""


def _replace(path: Path, content: bytes) -> None:
    fresh = path.with_name(f".{path.name}")
    fresh.unlink(missing_ok=True)
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        os.replace(fresh, path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _prune(folder: Path) -> None:
    """Remove the oldest files; another process may do the same."""
    with suppress(OSError):
        paths = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        paths.sort(key=lambda path: path.lstat().st_mtime)
        for path in paths[:-FILES_MAX]:
            path.unlink(missing_ok=True)
