"""Turns what SQLite and the system report into one line that says what to do."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rallypoint.base.private_files import NotPrivate
from rallypoint.server.journal.interface import JournalFailed, JournalInUse, JournalUnreadable

ELSEWHERE = "choose another file (sqlite:PATH)"

_FULL = "the disk is full; free some space, then start again"
_READ_ONLY = f"it cannot be written; make the file and its folder writable, or {ELSEWHERE}"
_DENIED = f"no permission; start as the owner of the file, or {ELSEWHERE}"
_TOO_LARGE = "a file may not grow any more; raise the limit (ulimit -f), then start again"
_LOCKED = "another program has locked it; end that program, then start again"
_FAILED = "the disk failed ({name}); see the kernel's log, then start again"
_CHANGED = "another program has changed it; end that program, then start again"
_MEMORY = "SQLite has no memory left; free some, then start again"
_NO_LOCKS = f"its file system has no locks; use a local disk: {ELSEWHERE}"
_DAMAGED = (
    "{what}; restore the journal from a backup, or move its files away, which ends running jobs"
)

_BY_CODE = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _DENIED,
    sqlite3.SQLITE_AUTH: _DENIED,
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
    sqlite3.SQLITE_CONSTRAINT: _CHANGED,
    sqlite3.SQLITE_NOMEM: _MEMORY,
    sqlite3.SQLITE_CANTOPEN: f"it cannot be opened; check the folder, or {ELSEWHERE}",
}
_BY_ERRNO = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EFBIG: _TOO_LARGE,
    errno.EISDIR: f"it is a folder, not a file; {ELSEWHERE}",
    errno.ENOTDIR: f"a part of its path is a file, not a folder; {ELSEWHERE}",
    errno.EEXIST: f"a part of its path is a file, not a folder; {ELSEWHERE}",
    errno.ENOENT: f"its folder does not exist; make it, or {ELSEWHERE}",
    errno.EMLINK: f"it has a second name, a hard link; remove one, or {ELSEWHERE}",
    errno.ELOOP: f"its path is a loop of links; {ELSEWHERE}",
    errno.ENOLCK: _NO_LOCKS,
    errno.EOPNOTSUPP: _NO_LOCKS,
    errno.EINVAL: f"it is not a file; {ELSEWHERE}",
    errno.ENAMETOOLONG: f"its path is too long; {ELSEWHERE}",
}
_FULL_WITH_WAL = sqlite3.SQLITE_IOERR_SHMSIZE
"""There is no room for the index of the WAL, which SQLite does not call a full disk."""
_PRIMARY = 0xFF
"""Bits of SQLite's extended error code that hold the code itself."""


class Damaged(Exception):
    """The tables do not hold what was written; the text is half a sentence."""


class Foreign(Exception):
    """The tables are not those of a journal."""


class Newer(Exception):
    """The tables have a format of the future."""

    def __init__(self, format: int, known: int) -> None:
        """Keep their format, and the highest that this version reads."""
        super().__init__(format, known)
        self.format = format
        self.known = known


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Raise JournalFailed, or what is derived from it, for every error of a disk or its content."""
    try:
        yield
    except Damaged as error:
        raise damaged(path, str(error)) from error
    except Foreign as error:
        raise foreign(path) from error
    except Newer as error:
        raise newer(path, error.format, error.known) from error
    except UnicodeDecodeError as error:  # of a name, or of SQLite's own message
        raise damaged(path, "it is damaged (a text is not UTF-8)") from error
    except (sqlite3.Error, OSError) as error:
        raise failed(path, error) from error


def failed(path: Path, error: sqlite3.Error | OSError) -> JournalFailed:
    """Return the failure to raise for an error that SQLite or the system reported."""
    if isinstance(error, NotPrivate):
        return JournalFailed(f"{error}: correct that, or {ELSEWHERE}")
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or 0, "no reason given")
        return _say(path, _BY_ERRNO.get(error.errno or 0, _FAILED.format(name=name)))
    # Errors that the module itself raises have no code, and their texts may hold values.
    extended = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    code = sqlite3.SQLITE_FULL if extended == _FULL_WITH_WAL else extended & _PRIMARY
    name = getattr(error, "sqlite_errorname", "a value of another kind")
    if code == sqlite3.SQLITE_NOTADB:
        return foreign(path)
    if code == sqlite3.SQLITE_IOERR:
        return _say(path, _FAILED.format(name=name))
    text = _BY_CODE.get(code)
    return damaged(path, f"it is damaged ({name})") if text is None else _say(path, text)


def damaged(path: Path, what: str) -> JournalUnreadable:
    """Return the failure to raise for a journal that does not hold what was written.

    Args:
        path: the database.
        what: what is wrong, as half a sentence.
    """
    return JournalUnreadable(f"{path}: {_DAMAGED.format(what=what)}")


def foreign(path: Path) -> JournalUnreadable:
    """Return the failure to raise for a file that is no journal."""
    return JournalUnreadable(f"{path}: this is not a journal of Rallypoint; {ELSEWHERE}")


def newer(path: Path, format: int, known: int) -> JournalUnreadable:
    """Return the failure to raise for a journal in a format of the future."""
    return JournalUnreadable(
        f"{path} was written by a newer rallypoint (format {format}; this one reads {known}): "
        "upgrade this coordinator"
    )


def in_use(path: Path, holder: str) -> JournalInUse:
    """Return the failure to raise for a journal that another coordinator has open.

    Args:
        path: the database.
        holder: its process id; empty: unknown.
    """
    by = f"coordinator with process id {holder}" if holder else "coordinator"
    return JournalInUse(f"{path}: another {by} uses this journal; end it, or {ELSEWHERE}")


def second_writer(path: Path, holder: str) -> JournalFailed:
    """Return the failure to raise when another coordinator has stored a batch in between.

    Args:
        path: the database.
        holder: its process id.
    """
    return _say(path, f"another coordinator writes it (process id {holder}); end one of them")


def no_wal(path: Path) -> JournalFailed:
    """Return the failure to raise for a file system without what WAL needs."""
    return _say(path, _NO_LOCKS)


def closed(path: Path) -> JournalFailed:
    """Return the failure to raise for a journal that was closed."""
    return _say(path, "the journal is closed")


def cut_off(path: Path, last: int, acknowledged: int, head: Path) -> JournalUnreadable:
    """Return the failure to raise for a journal without batches that were acknowledged.

    Args:
        path: the database.
        last: number of the last batch that it holds.
        acknowledged: number of the last batch that its witness knows.
        head: the file of the witness.
    """
    return JournalUnreadable(
        f"{path}: its end is missing (it has {last} of {acknowledged} batches); restore it from a "
        f"backup, or delete {head.name} to start without these"
    )


def witness_damaged(head: Path) -> JournalUnreadable:
    """Return the failure to raise for a witness that cannot be read."""
    return JournalUnreadable(
        f"{head}: the journal's last batch is not readable here; delete this file to start with "
        "what the journal holds"
    )


def witness_foreign(head: Path) -> JournalUnreadable:
    """Return the failure to raise for a witness that contradicts the journal."""
    return JournalUnreadable(
        f"{head}: this file belongs to another journal; restore the right one, or delete it to "
        "start with what the journal holds"
    )


def _say(path: Path, text: str) -> JournalFailed:
    return JournalFailed(f"{path}: {text}")
