"""Temporary folders of dead agents, and the lock by which a living agent keeps its folder.

An agent that ends removes its folder. After a SIGKILL the next agent on the node does. The proof of
death is a lock (flock) on a file in the folder: the kernel releases it when the agent's process is
gone, in whatever container it ran. The file appears under its name with the lock already held, so
a new folder is never mistaken for a dead one. It also holds the boot id, because on a shared file
system the lock may not reach other machines.

A folder is removed only if it belongs to our user and was made during this boot. A folder without
such a lock stays: nothing proves that its agent is dead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rallypoint.agent.helper.descendants import read_proc
from rallypoint.agent.output.log_folder import remove_empty_folders

PREFIX = "rallypoint_"
"""Of the names of all folders that agents make among the temporary files."""
REMOVED_MAX = 1_000
"""Folders that one agent removes; the next one continues."""

_LOCK = "agent.lock"
_LOGS = "logs"
"""File with the path of the folder for logs, if that is a temporary one too."""
_LOGS_BYTES_MAX = 4_096


def lock_folder(folder: Path) -> int:
    """Mark a new folder as the calling process's; return a descriptor that holds the lock.

    Raises:
        OSError: the file system has no locks, or is full.
    """
    fresh = folder / f"{_LOCK}.new"
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(fd, _boot_id())
        os.rename(fresh, folder / _LOCK)
    except OSError:
        os.close(fd)
        raise
    return fd


def note_logs(folder: Path, logs: Path) -> None:
    """Note in an agent's folder which temporary folder its logs have.

    Raises:
        OSError: it cannot be written.
    """
    (folder / _LOGS).write_bytes(os.fsencode(logs))


def remove_dead_folders(temporary: Path) -> list[str]:
    """Remove the folders of dead agents; return their paths, sorted.

    Of their logs only empty folders are removed, as at the end of an agent: files are for people.

    Args:
        temporary: the folder for temporary files.

    Raises:
        OSError: it cannot be listed.
    """
    removed: list[str] = []
    for name in sorted(os.listdir(temporary)):
        folder = temporary / name
        if len(removed) < REMOVED_MAX and _is_ours(folder):
            with _lock_of_dead_agent(folder) as is_dead:
                if is_dead:
                    _remove(folder)
                    removed.append(str(folder))
    return removed


def _is_ours(folder: Path) -> bool:
    """Return whether our user has made a folder, and an agent may have."""
    if not folder.name.startswith(PREFIX):
        return False
    try:
        facts = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()


@contextmanager
def _lock_of_dead_agent(folder: Path) -> Iterator[bool]:
    """Hold the lock of a folder; yield whether its agent is known to be dead."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        facts = os.fstat(fd)
        is_file = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
        is_dead = is_file and os.read(fd, 100) == _boot_id() != b""
    except OSError:
        is_dead = False  # its agent lives, or nothing is known
    try:
        yield is_dead
    finally:
        os.close(fd)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        with open(folder / _LOGS, "rb") as file:
            logs = Path(os.fsdecode(file.read(_LOGS_BYTES_MAX)))
        if logs.parent == folder.parent and _is_ours(logs):
            remove_empty_folders(logs)
    shutil.rmtree(folder, ignore_errors=True)


def _boot_id() -> bytes:
    return (read_proc("/proc/sys/kernel/random/boot_id") or b"").strip()
