"""The token of a coordinator that runs inside an agent, where programs of the same user find it.

TCP has no users: without a token every user of the host could cancel the job. The agent draws one
and keeps it in a file of its user alone, named after host and port, which it locks as long as it
lives. A file without a lock is what a process that was killed has left: it counts for nothing, and
the next agent removes it.
"""

from __future__ import annotations

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from rallypoint.base.private_files import FILE_MODE, make_private_folder, open_private
from rallypoint.base.user_folders import (
    find_host_name,
    find_state_home,
    find_temporary_home,
)
from rallypoint.wire.access import Access

FOLDER = "tokens"
LOOPBACK = "127.0.0.1"
"""Where such a coordinator listens, if the host has IPv4."""
SWEPT_MAX = 1_000
"""Files that a start looks at, at most, to remove those of dead agents."""
FRESH_S = 60.0
"""A file that its agent has not locked yet is not swept until it is older."""
_TOKEN_BYTES = 32
_FILE_BYTES_MAX = 4_096


class KeptToken:
    """A token in a file that is locked while this process lives."""

    def __init__(self, path: Path, fd: int) -> None:
        """Take ownership of the open and locked file."""
        self.path = path
        self._fd = fd

    def remove(self) -> None:
        """Remove the file, unless another agent has taken its place."""
        try:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(self._fd), self.path.lstat()):
                    self.path.unlink()
        finally:
            os.close(self._fd)


def draw_token() -> str:
    """Return a new token that cannot be guessed."""
    return os.urandom(_TOKEN_BYTES).hex()


def keep_token(port: int, token: str, address: str = LOOPBACK) -> KeptToken:
    """Keep the token of a coordinator on this host for other programs of this user.

    Args:
        port: where it listens.
        token: what its clients must show.
        address: where it listens, without brackets.

    Raises:
        OSError: there is no place that other users cannot change.
    """
    text = token if address == LOOPBACK else f"{token} {address}"
    try:
        return _keep(find_state_home() / FOLDER, port, text)
    except OSError:
        return _keep(find_temporary_home() / FOLDER, port, text)


def with_local_token(access: Access, endpoints: str) -> Access:
    """Return how to prove who one is to a coordinator, with its kept token if there is one.

    That counts before all others: whatever else the environment names is for other coordinators.

    Args:
        access: what flags, variables and files say.
        endpoints: `host:port`, or several with commas in between.
    """
    token = find_token(endpoints)
    return replace(access, token=token, token_file="") if token else access


def find_token(endpoints: str) -> str:
    """Return the token of a living agent's own coordinator at this address; empty: there is none.

    Args:
        endpoints: `host:port`, or several with commas in between, which no agent serves.
    """
    host, _, port = endpoints.rpartition(":")
    token, address = _find(port)
    # On its other addresses another user may listen at the same port.
    return token if host.strip("[]") == address else ""


def resolve_local(endpoints: str) -> str:
    """Return the address for which there is a token, if `localhost:port` is a living agent's own.

    Args:
        endpoints: `host:port`, or several with commas in between, which stay as they are.
    """
    host, _, port = endpoints.rpartition(":")
    _, address = _find(port) if host == "localhost" else ("", "")
    if not address:
        return endpoints
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def find_ports() -> list[int]:
    """Return where coordinators of living agents listen that keep a token for this user."""
    names = re.compile(rf"{re.escape(find_host_name())}-(\d{{1,5}})")
    ports = list[int]()
    for folder in (find_state_home() / FOLDER, find_temporary_home() / FOLDER):
        with suppress(OSError):
            found = filter(None, map(names.fullmatch, sorted(os.listdir(folder))[:SWEPT_MAX]))
            ports += [int(match[1]) for match in found if all(_find(match[1]))]
    return ports


def _find(port: str) -> tuple[str, str]:
    """Return the token of a living agent's own coordinator at a port, and its address."""
    if port.isdecimal():
        for find_home in (find_state_home, find_temporary_home):
            # A missing file, or one that another user could have written, is none of an agent's.
            with suppress(OSError):
                if words := _read(find_home() / FOLDER / _name(int(port))):
                    return words[0], words[1] if len(words) > 1 else LOOPBACK
    return "", ""


def _name(port: int) -> str:
    """Return the name of a file; home folders are often shared by hosts."""
    return f"{find_host_name()}-{port}"


def _keep(folder: Path, port: int, text: str) -> KeptToken:
    make_private_folder(folder)
    path = folder / _name(port)
    fresh = folder / f".{path.name}-{os.getpid()}-{os.urandom(4).hex()}"
    fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _sweep(folder, os.fstat(fd).st_mtime)
        os.pwrite(fd, f"{text}\n".encode(), 0)
        os.rename(fresh, path)
    except BaseException:
        os.close(fd)
        fresh.unlink(missing_ok=True)
        raise
    return KeptToken(path, fd)


def _sweep(folder: Path, now: float) -> None:
    """Remove the files of this host whose agents are dead.

    Args:
        folder: with the files of all hosts that share it.
        now: seconds since 1970, by the clock that dates its files.
    """
    host = re.escape(find_host_name())
    ours = re.compile(rf"{host}-\d+|\.{host}-\d+-\d+-[0-9a-f]+")
    names = [name for name in os.listdir(folder) if ours.fullmatch(name)]
    for name in names[:SWEPT_MAX]:
        with suppress(OSError):  # another one removes it, or its agent lives
            fd = open_private(folder / name, os.O_RDWR)
            try:
                status = os.fstat(fd)
                if name.startswith(".") and status.st_mtime > now - FRESH_S:
                    continue  # its agent locks it next
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(status, (folder / name).lstat()):
                    (folder / name).unlink()
            finally:
                os.close(fd)


def _read(path: Path) -> list[str]:
    """Return the token of a file that its agent has locked, and its address; empty: it is dead."""
    fd = open_private(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, _FILE_BYTES_MAX, 0).decode("ascii", "replace").strip()
        return text.split() if text.isascii() and text.isprintable() else []
    finally:
        os.close(fd)
    return []
