"""The store: what the coordinator calls.

One thread does all IO, in order, so that the loop of the coordinator never waits for a disk. A
batch is one transaction, synced before `append` returns; then the witness is written. A second
thread encodes snapshots and hands their parts to the first one, so batches are appended in between.

After a failure nothing is tried again: whether the last batch is stored is then unknown, and only a
new start finds out.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from rallypoint.base.log import get_logger, new_incident
from rallypoint.base.private_files import find_replacer
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.batches import (
    Batch,
    decode_batch,
    encode_batch,
    encode_snapshot,
)
from rallypoint.server.journal.interface import JournalFailed, JournalUnreadable, Loaded
from rallypoint.server.journal.sqlite import errors, file, pages
from rallypoint.server.journal.sqlite.chain import Link, extend
from rallypoint.server.journal.sqlite.errors import explaining
from rallypoint.server.journal.sqlite.opening import Files, open_files
from rallypoint.server.journal.sqlite.reading import read_contents
from rallypoint.server.journal.sqlite.thread import StoreThread
from rallypoint.server.journal.sqlite.witness import Mark

log = get_logger()

CLOSE_S = 5.0
"""How long each thread may take to finish when the journal is closed."""

T = TypeVar("T")


class _Replaced(NamedTuple):
    """What a snapshot replaces."""

    tip: Link
    """The last batch."""
    appended: tuple[int, int]
    """Records and bytes that were appended before."""


class SqliteJournal:
    """A journal in one file."""

    is_durable = True

    def __init__(self, path: Path, files: Files) -> None:
        """Take ownership of the open files; `open` is what others call."""
        self.path = path
        self.identity = files.meta.identity
        self.secret = files.meta.secret
        self._files = files
        self._tip = files.meta.base
        """The last batch, once loaded."""
        self._length = 0
        self._size = 0
        self._appended = 0, 0
        """Records and bytes since the journal was loaded."""
        self._failure: JournalFailed | None = None
        """Why nothing can be stored any more."""
        self._is_closing = False
        self._is_gone = False
        """Whether the file was deleted or replaced, which is logged once."""
        self._beside: tuple[str, ...] | None = None
        """Other files in the folder that go with the journal when it is closed; None: it stays."""
        self._gives_up = False
        """Whether a snapshot took so long when the journal was closed that it is abandoned."""
        self._writer = StoreThread("journal")
        self._compactor = StoreThread("journal-snapshot")

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a journal, or make a new one.

        Args:
            path: the database; links are followed.

        Raises:
            JournalInUse: when another coordinator has it open.
            JournalUnreadable: when the file is damaged, from the future, or not a journal.
            JournalFailed: when the system refuses.
        """
        given, path = path, Path(os.path.realpath(path))
        with explaining(path):
            if why := find_replacer(given):
                then = "keep it where only this user can write, in all folders above it, too"
                log.warning("journal_folder_exposed", path=str(given), why=why, then=then)
            files = open_files(path)
        return cls(path, files)

    @property
    def length(self) -> int:
        """Number of records that `load` would return."""
        return self._length

    @property
    def size(self) -> int:
        """Bytes that they take."""
        return self._size

    async def load(self) -> Loaded:
        """Return all records, checked against their digests and the witness.

        Raises:
            JournalUnreadable: when the file does not hold what was acknowledged.
            JournalFailed: when the system refuses.
        """
        return await self._run(self._load)

    async def append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Add a batch; it survives a power cut when this returns.

        Raises:
            JournalFailed: when it could not be stored, or an earlier one could not.
        """
        await self._run(lambda: self._append(records, now_ms))

    async def compact(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        """Begin to replace all records; batches may be appended meanwhile.

        The old records count until all new ones are stored. The next call raises a failure.

        Raises:
            JournalFailed: when an earlier batch or compaction could not be stored.
        """
        base = await self._run(self._accept)
        unix_ms = _read_wall_clock()
        self._compactor.submit(lambda: self._compact(records, base, now_ms, unix_ms))

    async def close(self) -> None:
        """Finish what was begun, and close the files. A disk that fails now is only logged."""
        if self._is_closing:
            return
        self._is_closing = True
        if not await self._compactor.close(CLOSE_S):
            self._gives_up = True
            log.warning("journal_snapshot_abandoned", path=str(self.path))
        self._writer.submit(self._close)
        if not await self._writer.close(CLOSE_S):
            log.warning("journal_not_closed", path=str(self.path))

    def keep(self) -> None:
        """Keep the journal when it is closed; undoes `discard`."""
        self._beside = None

    def discard(self, *beside: str) -> None:
        """Remove the journal when it is closed, and its folder if that is empty then.

        Args:
            beside: names of other files in the folder that go with it.
        """
        self._beside = beside

    async def _run(self, work: Callable[[], T]) -> T:
        if self._is_closing:
            raise errors.closed(self.path)
        return await self._writer.run(work)

    def _load(self) -> Loaded:
        files = self._files
        with explaining(self.path):
            contents = read_contents(self.path, files.connection, files.meta, files.mark)
            pages.drop_unnamed(files.connection, files.meta)
            # From here on the witness is as new as the journal, even if it was missing.
            files.witness.reset(Mark(files.meta.identity, contents.tip))
        records: list[JournalRecord] = []
        now_ms = unix_ms = 0
        for payload in contents.payloads:
            batch = self._decode(payload)
            records += batch.records
            now_ms, unix_ms = batch.now_ms, batch.unix_ms
        self._tip = contents.tip
        self._length, self._size = len(records), sum(map(len, contents.payloads))
        self._writer.submit(self._tidy)
        return Loaded(records, now_ms, unix_ms)

    def _decode(self, payload: bytes) -> Batch:
        try:
            return decode_batch(payload)
        except JournalUnreadable as error:
            raise JournalUnreadable(f"{self.path}: {error}") from error

    def _append(self, records: Sequence[JournalRecord], now_ms: int) -> None:
        self._check()
        payload = encode_batch(records, now_ms, _read_wall_clock())
        link = Link(self._tip.sequence + 1, extend(self._tip.digest, payload))
        with self._failing():
            pages.append(self._files.connection, link, payload)
            self._files.remember(link)
        self._look_for_file()
        self._tip = link
        self._appended = self._appended[0] + len(records), self._appended[1] + len(payload)
        self._length += len(records)
        self._size += len(payload)

    def _look_for_file(self) -> None:
        """Log if no start will find this journal: SQLite continues without a word."""
        if not self._is_gone and not self._files.is_at(self.path):
            self._is_gone = True
            then = "the next start forgets all jobs: let them end first; never delete these files"
            log.error("journal_gone", path=str(self.path), then=then)

    def _accept(self) -> _Replaced:
        """Return what a snapshot will replace."""
        self._check()
        return _Replaced(self._tip, self._appended)

    def _compact(
        self, records: Sequence[JournalRecord], base: _Replaced, now_ms: int, unix_ms: int
    ) -> None:
        """Encode a snapshot and have it stored, part by part; runs in the compactor's thread."""
        try:
            self._store_snapshot(records, base, now_ms, unix_ms)
        except JournalFailed:
            pass  # the next append raises it, too
        except Exception as error:  # a record that cannot be encoded must not end all jobs
            log.error("snapshot_failed", incident=new_incident(), exc_info=error)

    def _store_snapshot(
        self, records: Sequence[JournalRecord], base: _Replaced, now_ms: int, unix_ms: int
    ) -> None:
        connection, meta = self._files.connection, self._files.meta
        snapshot, parts, size = meta.snapshot + 1, 0, 0
        digest = pages.begin_snapshot(meta, snapshot, base.tip)
        self._await_write(partial(pages.drop_unnamed, connection, meta))
        for payload in encode_snapshot(records, now_ms, unix_ms):
            if self._gives_up:
                return  # the old records still count
            self._await_write(partial(pages.add_part, connection, snapshot, parts, payload))
            digest, parts, size = extend(digest, payload), parts + 1, size + len(payload)

        def name() -> None:
            self._files.meta = pages.name_snapshot(connection, meta, base.tip, parts, digest)
            before, bytes_before = base.appended
            self._length = len(records) + self._appended[0] - before
            self._size = size + self._appended[1] - bytes_before
            self._tidy()

        self._await_write(name)

    def _tidy(self) -> None:
        """Delete a little of what a snapshot has replaced; come back for the rest."""
        connection = self._files.connection
        if self._is_closing or self._failure is not None:
            return
        with self._failing():
            more = pages.drop_some(connection, self._files.meta) or pages.shrink_some(connection)
        if more:
            self._writer.submit(self._tidy)

    def _await_write(self, work: Callable[[], None]) -> None:
        """Do one thing in the writer's thread, between batches.

        Raises:
            JournalFailed: when it fails, or something before it has.
        """

        def write() -> None:
            self._check()
            with self._failing():
                work()

        self._writer.submit(write).result()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Let every later call fail as this one does."""
        try:
            with explaining(self.path), self._naming_writer():
                yield
        except JournalFailed as failure:
            self._failure = failure
            raise

    @contextmanager
    def _naming_writer(self) -> Iterator[None]:
        """Name the coordinator that has written meanwhile, if its lock file tells."""
        try:
            yield
        except sqlite3.IntegrityError as error:
            holder = file.find_other_holder(self._files.lock, self.path)
            if not holder:
                raise
            raise errors.second_writer(self.path, holder) from error

    def _close(self) -> None:
        self._failure = self._failure or errors.closed(self.path)
        try:
            self._files.close(() if self._beside is None else _list_files(self.path, self._beside))
        except (sqlite3.Error, OSError) as error:
            log.warning("journal_not_closed", why=str(errors.failed(self.path, error)))


def _list_files(path: Path, beside: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of a journal, and others in its folder; the lock comes last."""
    kinds = ("wal", "shm", "head")
    own = (path, *(file.beside(path, kind) for kind in kinds))
    return (*own, *map(path.with_name, beside), file.beside(path, "lock"))


def _read_wall_clock() -> int:
    return time.time_ns() // 1_000_000
