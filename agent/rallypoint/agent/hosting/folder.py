"""The folder of a hosted coordinator: its journal and its log.

The coordinator removes the folder when it ends. One that was killed leaves it, and another start
continues from the journal. But a folder that no coordinator has touched for a while belongs to a
job of the past: a new job of the same endpoint must not become a part of it.
"""

from __future__ import annotations

import fcntl
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from rallypoint.base.private_files import make_private_folder
from rallypoint.base.user_folders import (
    find_state_home,
    find_temporary_home,
    name_hosted,
)

JOURNAL = "journal.sqlite"
LOCK = f"{JOURNAL}-lock"
LOG = "coordinator.log"
LINGERING = "lingering"
"""Has the process id of a coordinator that waits only for lost nodes of a job that is over."""
STALE_S = 60.0
"""A coordinator touches its journal far more often. An agent that was killed with its coordinator
is back sooner, if something restarts it."""
LOG_BYTES_MAX = 16 * 1024
"""How much of the end of a log is searched for its last line."""
_FILES = (JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", f"{JOURNAL}-head", LOG, LINGERING)


class NoFolder(Exception):
    """There is no place for the folder; the text says what to do."""


def make_folder(port: int, *, is_temporary: bool = False) -> Path:
    """Return the folder of a coordinator on this host; make it where there is none.

    Its name has the host's: home folders are often shared.

    If other users can replace it in all places, it is there all the same: the volumes of a pod are
    often such, and nothing else can be written. `find_replacer` tells.

    Args:
        port: of the coordinator.
        is_temporary: the state folder cannot hold a journal, so it is among the temporary files.

    Raises:
        NoFolder: when the system refuses, or another user has made the folder.
    """
    # Containers often have no home. The journal then lives as long as the temporary files.
    places = _candidates(port)[is_temporary:]
    refused: dict[Path, str | None] = {}
    for may_be_exposed in (False, True):
        for folder in places:
            try:
                _make(folder, may_be_exposed)
            except OSError as error:
                refused[folder] = error.strerror
            else:
                return folder
    why = " or ".join(f"{folder} ({why})" for folder, why in refused.items())
    raise NoFolder(f"cannot keep the journal of the coordinator in {why}: set XDG_STATE_HOME")


def is_in_use(port: int) -> bool:
    """Return whether a coordinator of this host that another agent may have started has a folder.

    It removes the folder as the last thing that it does.
    """
    return any(_age_s(folder) < STALE_S for folder in _candidates(port))


def has_journal(port: int) -> bool:
    """Return whether there is a journal: a coordinator runs, or has not come to its own end."""
    return any(_age_s(folder) < math.inf for folder in _candidates(port))


def find_lingering(port: int) -> tuple[Path, int] | None:
    """Return the folder and process id of a coordinator that waits only for lost nodes."""
    for folder in _candidates(port):
        if _age_s(folder) >= STALE_S:
            continue
        with suppress(OSError, ValueError):
            pid = (folder / LINGERING).read_text()
            if pid == (folder / LOCK).read_text():
                return folder, int(pid)
    return None


def drop_if_stale(folder: Path) -> bool:
    """Remove the files of a job of the past; return whether there were any.

    The folder stays. No coordinator may have them open.
    """
    if not STALE_S <= _age_s(folder) < math.inf:
        return False
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    return True


def remove_unused(folder: Path) -> None:
    """Remove the files of a coordinator that has ended, and the folder, if no other one has them.

    A coordinator holds the lock as long as it lives. What cannot be removed stays.
    """
    with suppress(OSError):
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have removed the files, and another coordinator has made new ones.
            if os.path.samestat(os.fstat(lock), (folder / LOCK).stat()):
                for name in (*_FILES, LOCK):
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()
        finally:
            os.close(lock)


def read_last_line(log: Path) -> str:
    """Return the last line of a coordinator's log; empty: it has none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES_MAX))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _candidates(port: int) -> tuple[Path, Path]:
    """Return where the folder is, and where it is if it cannot be there."""
    name = name_hosted(port)
    return find_state_home() / name, find_temporary_home() / name


def _age_s(folder: Path) -> float:
    """Return how long ago a coordinator touched its journal; without one, infinity."""
    try:
        about = (folder / JOURNAL).lstat()
    except OSError:
        return math.inf
    if about.st_uid != os.geteuid():
        return math.inf  # another user has put it among the temporary files
    return time.time() - about.st_mtime  # noqa: TID251  # as files have it


def _make(folder: Path, may_be_exposed: bool) -> None:
    """Make a folder that only this user can use: a journal holds secrets."""
    make_private_folder(folder, may_be_exposed=may_be_exposed)
    if not os.access(folder, os.W_OK):
        raise PermissionError(1, "it is read-only")
