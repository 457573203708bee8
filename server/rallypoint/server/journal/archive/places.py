"""Where journals are: SQLite's files and etcd. Reads all of a store, and fills a new one."""

from __future__ import annotations

from rallypoint.server.core.model.shards import SHARDS_DEFAULT, SHARDS_MAX
from rallypoint.server.etcd.address import SCHEME, is_etcd
from rallypoint.server.journal.archive import sqlite
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.conversion import with_shards
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.open import SQLITE, require_etcd_client

KINDS = f"{SQLITE}PATH or {SCHEME}HOST:PORT/PREFIX"


def read(state: str, job_id: str = "") -> Contents:
    """Return all journals of a store, as of one moment; coordinators may be running on them.

    Args:
        state: as `coordinator --state` has it.
        job_id: read nothing that cannot be about this job; empty: everything.

    Raises:
        JournalUnreadable: when they are damaged, or were written by a newer version.
        JournalFailed: when there are none, or the system refuses.
    """
    if is_etcd(state):
        require_etcd_client()
        from rallypoint.server.journal.archive import etcd

        return etcd.read(state, job_id)
    return sqlite.read(_path_of(state))


def fitted(state: str, contents: Contents, shards: int = 0) -> Contents:
    """Return the same store as a place can hold it: etcd has shards, and a file has none.

    Args:
        state: as `coordinator --state` has it.
        contents: with shards or without.
        shards: how many to divide a journal without shards into; 0: the default, or as many as
            `contents` has.

    Raises:
        JournalFailed: when the place cannot hold it: shards stay as many as they are.
    """
    if not is_etcd(state):
        _path_of(state)
        if shards:
            raise JournalFailed(f"{state}: only a journal in etcd has shards; leave --shards out")
        if contents.is_sharded:
            raise JournalFailed(
                f"{state}: shards cannot become one journal again; import them into etcd"
            )
        return contents
    if contents.is_sharded:
        if shards not in (0, contents.shard_count):
            raise JournalFailed(
                f"the number of shards cannot change: leave --shards out, or say"
                f" --shards {contents.shard_count}"
            )
        return contents
    count = shards or SHARDS_DEFAULT
    if count > SHARDS_MAX:
        raise JournalFailed(f"{count} shards are too many: at most {SHARDS_MAX}")
    return with_shards(contents, count)


def fill(state: str, contents: Contents) -> None:
    """Write all journals where there are none yet, all of them or nothing.

    Args:
        state: as `coordinator --state` has it.
        contents: what to write, fitted.

    Raises:
        JournalInUse: when a coordinator runs there.
        JournalFailed: when there is a journal, or the system refuses.
    """
    if is_etcd(state):
        require_etcd_client()
        from rallypoint.server.journal.archive import etcd

        etcd.fill(state, contents)
    else:
        sqlite.fill(_path_of(state), contents)


def _path_of(state: str) -> str:
    path = state.removeprefix(SQLITE)
    if path == state or not path:
        raise JournalFailed(f"{state!r} is not {KINDS}: there is nothing to read or write")
    return path
