"""Reads a journal in a file beside a coordinator that runs on it, and fills a new one."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import quote

from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.sqlite import errors, file, pages
from rallypoint.server.journal.sqlite.chain import Link, extend
from rallypoint.server.journal.sqlite.reading import read_contents
from rallypoint.server.journal.sqlite.witness import Mark, Witness


def read(name: str) -> Contents:
    """Return a whole journal, as of one moment; a coordinator may be running on it.

    Args:
        name: of the file.

    Raises:
        JournalUnreadable: when it is damaged, or was written by a newer version.
        JournalFailed: when there is none, or the system refuses.
    """
    path = _path_of(name)
    with errors.explaining(path):
        if not path.exists():
            raise JournalFailed(
                f"{path}: there is no such file; the first line of a coordinator's log names its "
                "journal"
            )
        if not path.is_file():  # SQLite would wait for the other end of a pipe
            reason = errno.EISDIR if path.is_dir() else errno.EINVAL
            raise OSError(reason, os.strerror(reason))
        mark = _read_witness(path)  # first: what is written meanwhile makes the journal longer
        with closing(_open(path)) as connection:
            connection.execute("BEGIN")  # all that follows is as of one moment
            meta = pages.read_meta(connection)
            if meta is None:
                raise JournalFailed(f"{path}: it is empty; a coordinator makes it when it starts")
            found = read_contents(path, connection, meta, mark)
    return Contents(identity=meta.identity, secret=meta.secret, journals=(tuple(found.payloads),))


def fill(name: str, contents: Contents) -> None:
    """Write a whole journal where there is none yet, all of it or nothing.

    Args:
        name: of the file.
        contents: what to write, without shards.

    Raises:
        JournalInUse: when a coordinator has it open.
        JournalFailed: when there is a journal, or the system refuses.
    """
    path = _path_of(name)
    with errors.explaining(path), ExitStack() as stack:
        file.prepare(path)
        stack.callback(os.close, file.lock(path))
        beside = (path, file.beside(path, "wal"), file.beside(path, "head"))
        if any(one.exists() and one.stat().st_size for one in beside):
            raise JournalFailed(f"{path}: there is a journal already; import into a new file")
        tip = _write(file.beside(path, "import"), contents)
        os.rename(file.beside(path, "import"), path)
        witness = Witness.open(file.beside(path, "head"))
        stack.callback(witness.close)
        witness.reset(Mark(contents.identity, tip))
        file.sync_folder(path.parent)


def _path_of(name: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(name)))


def _open(path: Path) -> sqlite3.Connection:
    """Open a database for reading only, also one that has a writer."""
    return sqlite3.connect(
        f"file:{quote(str(path))}?mode=ro", uri=True, timeout=file.BUSY_S, isolation_level=None
    )


def _read_witness(path: Path) -> Mark | None:
    head = file.beside(path, "head")
    if not head.exists():
        return None
    witness = Witness(head, os.open(head, os.O_RDONLY | os.O_CLOEXEC))
    try:
        return witness.read()
    finally:
        witness.close()


def _write(path: Path, contents: Contents) -> Link:
    """Make a whole journal, synced; return its last batch."""
    path.unlink(missing_ok=True)  # what an import left that was cut off
    file.prepare(path)
    with closing(file.connect(path)) as connection:
        meta = pages.make(connection, contents.identity, contents.secret)
        tip = meta.base
        connection.execute("BEGIN IMMEDIATE")
        (payloads,) = contents.journals
        for payload in payloads:
            tip = Link(tip.sequence + 1, extend(tip.digest, payload))
            pages.append(connection, tip, payload)
        connection.execute("COMMIT")
    return tip  # closing has moved the WAL into the file
