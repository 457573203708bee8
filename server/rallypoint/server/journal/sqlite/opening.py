"""Opens the files of a journal, or makes them."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.journal.interface import SECRET_BYTES, JournalUnreadable
from rallypoint.server.journal.sqlite import errors, file, pages
from rallypoint.server.journal.sqlite.chain import Link
from rallypoint.server.journal.sqlite.witness import Mark, Witness

log = get_logger()

_IDENTITY_BYTES = 16


class Files(Struct):
    """The open files of a journal, and what they say about it."""

    connection: sqlite3.Connection
    witness: Witness
    lock: int
    """The lock file."""
    database: int
    """The lock of the database."""
    meta: pages.Meta
    mark: Mark | None
    """What the witness held when it was opened; None: nothing."""
    origin: os.stat_result
    """Of the database when it was opened."""

    def remember(self, link: Link) -> None:
        """Note in the witness that a batch is stored.

        Raises:
            OSError: when the system refuses.
        """
        self.witness.write(Mark(self.meta.identity, link))

    def is_at(self, path: Path) -> bool:
        """Return whether these files are still the ones at a path."""
        try:
            return os.path.samestat(os.stat(path), self.origin)
        except OSError:
            return False

    def close(self, removed: Sequence[Path] = ()) -> None:
        """Close them all; the lock goes last.

        Args:
            removed: files that are removed while the lock is held, and their folder if it is empty.

        Raises:
            sqlite3.Error: when SQLite could not close its file.
            OSError: when the system refuses.
        """
        with ExitStack() as stack:
            stack.callback(os.close, self.lock)
            stack.callback(os.close, self.database)
            if removed:
                stack.callback(file.remove, removed)
            stack.callback(self.witness.close)
            stack.callback(self.connection.close)


def open_files(path: Path) -> Files:
    """Open a journal; make it where there is none.

    Raises:
        JournalInUse: when another process has it.
        JournalFailed: when its witness contradicts it.
        NotPrivate: when another user could write one of its files.
        Damaged, Foreign, Newer: when it is not a journal that can be read.
        sqlite3.Error: when SQLite refuses.
        OSError: when the system refuses.
    """
    file.prepare(path)
    head = file.beside(path, "head")
    with ExitStack() as stack:
        lock = file.lock(path)
        stack.callback(os.close, lock)
        if file.find_exposed(path):
            with closing(file.connect(path)) as connection:
                pages.read_meta(connection)  # the file of another program is left as it is
            file.protect(path)
        database = file.lock_database(path)
        stack.callback(os.close, database)
        connection = file.connect(path)
        stack.callback(connection.close)
        meta = pages.read_meta(connection)
        witness = Witness.open(head)
        stack.callback(witness.close)
        try:
            mark = witness.read()
        except JournalUnreadable:
            if meta is None or meta.snapshot or pages.has_batches(connection):
                raise
            mark = None  # power was cut when the journal was made
        if meta is None:
            if mark is not None and mark.link.sequence > 0:
                raise errors.cut_off(path, 0, mark.link.sequence, head)
            identity = secrets.token_hex(_IDENTITY_BYTES)
            meta = pages.make(connection, identity, secrets.token_bytes(SECRET_BYTES))
            mark = None
        if mark is None:
            if meta.snapshot or pages.has_batches(connection):
                log.warning("journal_witness_lost", path=str(head))
            else:
                witness.reset(Mark(meta.identity, meta.base))
                file.sync_folder(path.parent)
        files = Files(connection, witness, lock, database, meta, mark, os.stat(path))
        stack.pop_all()
        return files
