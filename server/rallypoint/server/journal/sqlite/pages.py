"""The tables of a journal, and what each transaction reads or writes.

    meta      format, identity, secret, what the snapshot covers, and a digest of all that
    batches   one row for each batch: its number, its digest in the chain, its bytes
    parts     the snapshot: what replaces all batches up to the one that `meta` names

A snapshot is written in parts, each in its own transaction, so that batches are appended meanwhile.
It counts from the transaction that names it in `meta`. What it replaces is deleted afterwards, a
few rows at a time. A crash in between leaves rows that do not count, which the next start deletes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.server.journal.sqlite.chain import Link, begin, extend
from rallypoint.server.journal.sqlite.errors import Damaged, Foreign, Newer

FORMAT = 1
"""Of the tables; batches have their own."""
APPLICATION_ID = 0x52506A6C
"""Marks the file as ours, for `file` and for ourselves: "RPjl"."""
DROP_ROWS = 200
"""Rows that one transaction deletes: a few milliseconds."""
DROP_BYTES = 1_048_576
"""Bytes of batches after which it deletes no further one."""
FREE_PAGES = 1_024
"""Unused pages that the file keeps for the next batches: 4 MB."""
VACUUM_PAGES = 512
"""Pages that one transaction gives back to the file system."""

_SCHEMA = """
BEGIN IMMEDIATE;
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE batches (sequence INTEGER PRIMARY KEY, digest BLOB NOT NULL, payload BLOB NOT NULL);
CREATE TABLE parts (
    snapshot INTEGER NOT NULL, number INTEGER NOT NULL, payload BLOB NOT NULL,
    PRIMARY KEY (snapshot, number)
);
"""


class Meta(Struct, frozen=True):
    """What `meta` holds."""

    identity: str
    """32 hexadecimal digits."""
    secret: bytes
    base: Link
    """The last batch that the snapshot covers."""
    snapshot: int = 0
    """Number of the snapshot, counted from 1; 0: there is none, and the base is the beginning."""
    parts: int = 0
    """Number of its parts."""
    snapshot_digest: bytes = b""
    """Of all its parts, in order."""


def make(connection: sqlite3.Connection, identity: str, secret: bytes) -> Meta:
    """Make the tables of a new journal, in one transaction."""
    meta = Meta(identity, secret, Link(0, begin(b"journal", bytes.fromhex(identity))))
    try:
        connection.executescript(_SCHEMA)
        _write_meta(connection, meta)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return meta


def read_names(connection: sqlite3.Connection) -> set[str] | None:
    """Return the names of all tables; None when the file has none at all.

    Raises:
        Foreign: when they are those of another program.
    """
    [[application]] = connection.execute("PRAGMA application_id").fetchall()
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not names and application == 0:
        return None
    if application != APPLICATION_ID:
        raise Foreign
    return names


def read_meta(connection: sqlite3.Connection) -> Meta | None:
    """Return what `meta` holds; None when the file has no tables at all.

    Raises:
        Damaged: when it is not what was written.
        Foreign: when the tables are those of another program.
        Newer: when a newer version made the tables.
    """
    names = read_names(connection)
    if names is None:
        return None
    if "meta" not in names:
        raise Damaged("its table `meta` is missing")
    found = dict(connection.execute("SELECT key, value FROM meta"))
    if isinstance(format := found.get("format"), int) and format > FORMAT:
        raise Newer(format, FORMAT)
    seal = found.pop("seal", None)
    if seal is None or seal != _seal(found):
        raise Damaged("its table `meta` is damaged")
    base = Link(found["base"], found["base_digest"])
    return Meta(
        found["identity"],
        found["secret"],
        base,
        found["snapshot"],
        found["parts"],
        found["snapshot_digest"],
    )


def check_pages(connection: sqlite3.Connection) -> None:
    """Let SQLite look through all its pages.

    Raises:
        Damaged: when a page is not as it should be.
    """
    problems = [text for (text,) in connection.execute("PRAGMA integrity_check(1)")]
    if problems != ["ok"]:
        raise Damaged("it has a damaged page")


def read_parts(connection: sqlite3.Connection, meta: Meta) -> Iterator[bytes]:
    """Yield the parts of the snapshot, in order; they may be used once all were read.

    Raises:
        Damaged: when they are not those that were written.
    """
    rows = connection.execute(
        "SELECT number, payload FROM parts WHERE snapshot = ? ORDER BY number", (meta.snapshot,)
    )
    digest, count = begin_snapshot(meta, meta.snapshot, meta.base), 0
    for number, payload in rows:
        if number != count or not isinstance(payload, bytes):
            raise Damaged("a part of its snapshot is missing")
        digest, count = extend(digest, payload), count + 1
        yield payload
    if count != meta.parts or (meta.snapshot and digest != meta.snapshot_digest):
        raise Damaged("its snapshot is damaged")


def read_batches(connection: sqlite3.Connection, meta: Meta) -> Iterator[tuple[Link, bytes]]:
    """Yield the batches after the snapshot, in order, each checked.

    Raises:
        Damaged: when one is missing or not the one that was written.
    """
    rows = connection.execute(
        "SELECT sequence, digest, payload FROM batches WHERE sequence > ? ORDER BY sequence",
        (meta.base.sequence,),
    )
    last = meta.base
    for sequence, digest, payload in rows:
        if sequence != last.sequence + 1:
            raise Damaged(f"batch {last.sequence + 1} is missing")
        if not isinstance(payload, bytes) or digest != extend(last.digest, payload):
            raise Damaged(f"batch {sequence} is damaged")
        last = Link(sequence, digest)
        yield last, payload


def has_batches(connection: sqlite3.Connection) -> bool:
    """Return whether any batch was ever stored and is still here."""
    return bool(connection.execute("SELECT 1 FROM batches LIMIT 1").fetchall())


def append(connection: sqlite3.Connection, link: Link, payload: bytes) -> None:
    """Add a batch, in one transaction that is synced when this returns."""
    connection.execute(
        "INSERT INTO batches VALUES (?, ?, ?)", (link.sequence, link.digest, payload)
    )


def add_part(connection: sqlite3.Connection, snapshot: int, number: int, payload: bytes) -> None:
    """Add a part of a snapshot that does not count yet, in one transaction."""
    connection.execute("INSERT INTO parts VALUES (?, ?, ?)", (snapshot, number, payload))


def begin_snapshot(meta: Meta, snapshot: int, base: Link) -> bytes:
    """Return the digest that the parts of a snapshot continue."""
    facts = (snapshot, base.sequence)
    return begin(
        b"snapshot",
        bytes.fromhex(meta.identity),
        *(number.to_bytes(8, "big") for number in facts),
        base.digest,
    )


def name_snapshot(
    connection: sqlite3.Connection, meta: Meta, base: Link, parts: int, digest: bytes
) -> Meta:
    """Let the next snapshot count instead of all batches up to `base`, in one transaction.

    Args:
        connection: the database.
        meta: as it is.
        base: the last batch that the snapshot covers.
        parts: number of its parts.
        digest: of its parts.
    """
    changed = replace(
        meta, base=base, snapshot=meta.snapshot + 1, parts=parts, snapshot_digest=digest
    )
    connection.execute("BEGIN IMMEDIATE")
    try:
        _write_meta(connection, changed)
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return changed


def drop_unnamed(connection: sqlite3.Connection, meta: Meta) -> None:
    """Delete the parts of a snapshot that was never finished, in one transaction."""
    connection.execute("DELETE FROM parts WHERE snapshot > ?", (meta.snapshot,))


def drop_some(connection: sqlite3.Connection, meta: Meta) -> bool:
    """Delete some rows that a snapshot has replaced, in one transaction; return whether any was.

    Args:
        connection: the database.
        meta: as it is.
    """
    dropped = connection.execute(
        "DELETE FROM batches WHERE sequence IN (SELECT sequence FROM (SELECT sequence,"
        " SUM(LENGTH(payload)) OVER (ORDER BY sequence) - LENGTH(payload) AS before"
        " FROM (SELECT * FROM batches WHERE sequence <= ? ORDER BY sequence LIMIT ?))"
        " WHERE before < ?)",
        (meta.base.sequence, DROP_ROWS, DROP_BYTES),
    ).rowcount
    if not dropped:
        dropped = connection.execute(
            "DELETE FROM parts WHERE rowid IN"
            " (SELECT rowid FROM parts WHERE snapshot < ? ORDER BY snapshot, number LIMIT 1)",
            (meta.snapshot,),
        ).rowcount
    return dropped > 0


def shrink_some(connection: sqlite3.Connection) -> bool:
    """Give some unused pages back to the file system; return whether there may be more."""
    [[free]] = connection.execute("PRAGMA freelist_count").fetchall()
    pages = min(VACUUM_PAGES, free - FREE_PAGES)
    if pages <= 0:
        return False
    connection.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
    [[left]] = connection.execute("PRAGMA freelist_count").fetchall()
    return bool(left < free)  # a file that was made without auto_vacuum keeps its pages


def _write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    found: dict[str, int | str | bytes] = {
        "format": FORMAT,
        "identity": meta.identity,
        "secret": meta.secret,
        "base": meta.base.sequence,
        "base_digest": meta.base.digest,
        "snapshot": meta.snapshot,
        "parts": meta.parts,
        "snapshot_digest": meta.snapshot_digest,
    }
    rows = [*found.items(), ("seal", _seal(found))]
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)


def _seal(found: dict[str, int | str | bytes]) -> bytes | None:
    """Return the digest of all facts in `meta`; None when one is missing or has another type."""
    types = {
        "format": int,
        "identity": str,
        "secret": bytes,
        "base": int,
        "base_digest": bytes,
        "snapshot": int,
        "parts": int,
        "snapshot_digest": bytes,
    }
    if {name: type(value) for name, value in found.items()} != types:
        return None
    return begin(b"meta", *(repr(found[name]).encode() for name in types))


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
