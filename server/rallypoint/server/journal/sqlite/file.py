"""The file of a journal: its folder, its lock, and the connection to it.

Beside `NAME` lie `NAME-wal` and `NAME-shm` (SQLite's), `NAME-head` (the witness) and `NAME-lock`.
All have the owner's permissions only, because a journal holds its secret and what workers share.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from rallypoint.base.log import get_logger
from rallypoint.base.private_files import FILE_MODE, FOLDER_MODE, open_private
from rallypoint.server.journal.sqlite import errors, pages

log = get_logger()

BUSY_S = 5.0
"""How long to wait for another program that has the file locked, such as one that reads it."""
WAL_PAGES = 1_000
"""Pages in the WAL after which SQLite copies them into the file: 4 MB, some ten milliseconds."""
WAL_BYTES = 8 * 1_048_576
"""The WAL is cut down to this size when it begins again."""
_OTHERS = 0o077
_PID_BYTES = 20
_LOCK_AT = 1 << 62
"""Byte of the database that a coordinator locks. SQLite's are near the first GiB."""
_FLOCK = "hhqqi4x"
"""`struct flock` of Linux: type, whence, start, length, process id."""


def prepare(path: Path) -> None:
    """Make the folder and an empty file where there is none.

    Raises:
        NotPrivate: when another user could write it.
        OSError: when the system refuses.
    """
    missing = [path.parent, *path.parent.parents]
    missing = missing[: next((n for n, one in enumerate(missing) if one.exists()), 0)]
    for folder in reversed(missing):
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        sync_folder(folder.parent)
    fd = open_private(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(fd).st_nlink > 1:  # by another name it has another lock and another WAL
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
    finally:
        os.close(fd)


def find_exposed(path: Path) -> list[str]:
    """Check all files of a journal; return the names of those that other users can read.

    Raises:
        NotPrivate: when another user could write one of them.
        OSError: when the system refuses.
    """
    return [place.name for place, fd in _open_parts(path) if os.fstat(fd).st_mode & _OTHERS]


def protect(path: Path) -> None:
    """Take from other users the right to read the files of a journal.

    Kubernetes adds such rights when it mounts a volume for a group; copies have those of a umask.

    Raises:
        NotPrivate: when another user could write one of them.
        OSError: when the system refuses.
    """
    exposed = find_exposed(path)
    for _, fd in _open_parts(path):
        os.fchmod(fd, FILE_MODE)
    then = "they have mode 0600 now; who has read them knows the journal's secret"
    log.warning("journal_exposed", files=exposed, folder=str(path.parent), then=then)


def _open_parts(path: Path) -> Iterator[tuple[Path, int]]:
    for place in (path, *(beside(path, kind) for kind in ("wal", "shm", "head", "lock"))):
        try:
            fd = open_private(place, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            yield place, fd
        finally:
            os.close(fd)


def lock(path: Path) -> int:
    """Take the lock of a journal for this process; return its descriptor.

    The lock ends with the process, however that ends.

    Raises:
        JournalInUse: when another process has it.
        NotPrivate: when another user could write it, or it is a link: then nothing is truncated.
        OSError: when the system refuses.
    """
    fd = open_private(beside(path, "lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(fd, beside(path, "lock")):  # its holder has removed the journal meanwhile
            raise BlockingIOError
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, _PID_BYTES, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise errors.in_use(path, holder if holder.isdecimal() else "") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock_database(path: Path) -> int:
    """Lock the database itself for this process; return its descriptor.

    The lock file may be deleted while its holder lives; then this lock still keeps a second
    coordinator away. It covers bytes far behind those that SQLite locks, so who reads the journal
    does not meet it. The lock belongs to the descriptor: close the connection before it, because
    closing any descriptor of a file ends the locks that SQLite has there.

    Raises:
        JournalInUse: when another process has it.
        OSError: when the system refuses.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        _lock_byte(fd, _LOCK_AT)
        _lock_byte(fd, _LOCK_AT + os.getpid())  # names the holder
    except (BlockingIOError, PermissionError):
        holder = _find_locked(fd, _LOCK_AT + 1) - _LOCK_AT
        os.close(fd)
        raise errors.in_use(path, str(holder) if holder > 0 else "") from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # a sandbox's kernel may not have such locks
            os.close(fd)
            raise
    return fd


def find_other_holder(fd: int, path: Path) -> str:
    """Return the process id in a lock file that has replaced one's own; empty: none has.

    Args:
        fd: of one's own lock file.
        path: the database.
    """
    place = beside(path, "lock")
    try:
        if _is_at(fd, place):
            return ""
        holder = place.read_text("ascii", "replace").strip()
    except OSError:
        return ""
    return holder if holder.isdecimal() else ""


def remove(files: Sequence[Path]) -> None:
    """Remove files of one folder, and the folder if it is empty then.

    Raises:
        OSError: when the system refuses.
    """
    for one in files:
        one.unlink(missing_ok=True)
    try:
        files[0].parent.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOENT):
            raise


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def _lock_byte(fd: int, place: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _pack_flock(fcntl.F_WRLCK, place, 1))


def _find_locked(fd: int, place: int) -> int:
    """Return the first byte from a place on that another one has locked; 0: there is none."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _pack_flock(fcntl.F_WRLCK, place, 0))
    kind, _, start, *_ = struct.unpack(_FLOCK, found)
    return 0 if kind == fcntl.F_UNLCK else int(start)


def _pack_flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)


def connect(path: Path) -> sqlite3.Connection:
    """Open the database for reading and writing, each commit synced.

    Raises:
        JournalFailed: when the file system cannot do what WAL needs.
        Foreign: when it is the database of another program.
        sqlite3.Error: when SQLite refuses.
    """
    connection = sqlite3.connect(
        path,
        timeout=BUSY_S,
        isolation_level=None,  # transactions begin and end where the code says so
        check_same_thread=False,  # it is opened at the start, and used in the store's thread
    )
    try:
        pages.read_names(connection)  # what follows would change another program's file
        # The first has no effect once there are tables; then the file was made with it.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        [[mode]] = connection.execute("PRAGMA journal_mode = WAL").fetchall()
        if mode != "wal":
            raise errors.no_wal(path)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.execute("PRAGMA secure_delete = OFF")  # it would write what is dropped
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def beside(path: Path, kind: str) -> Path:
    """Return the file that belongs to a journal: its `head`, its `lock`."""
    return path.with_name(f"{path.name}-{kind}")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut.

    Raises:
        OSError: when the system refuses.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
