"""Reads a whole journal, and checks that it is what was written and what was acknowledged."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from msgspec import Struct

from rallypoint.server.journal.sqlite import errors, pages
from rallypoint.server.journal.sqlite.chain import Link
from rallypoint.server.journal.sqlite.errors import Damaged
from rallypoint.server.journal.sqlite.file import beside
from rallypoint.server.journal.sqlite.witness import Mark


class Contents(Struct):
    """What a journal holds."""

    payloads: list[bytes]
    """The parts of the snapshot, then the batches after it; oldest first."""
    tip: Link
    """The last batch."""


def read_contents(
    path: Path, connection: sqlite3.Connection, meta: pages.Meta, mark: Mark | None
) -> Contents:
    """Read everything that counts.

    Args:
        path: the database, for messages.
        connection: the database.
        meta: what its table `meta` holds.
        mark: what its witness says; None: nothing, so only the digests are checked.

    Raises:
        JournalUnreadable: when a batch was acknowledged and is not there, or not as it was.
        Damaged: when something else is not as it was written.
        sqlite3.Error: when SQLite finds that.
    """
    pages.check_pages(connection)
    tip = witnessed = meta.base
    payloads = list(pages.read_parts(connection, meta))
    for tip, payload in pages.read_batches(connection, meta):
        payloads.append(payload)
        if mark is not None and tip.sequence == mark.link.sequence:
            witnessed = tip
    if mark is not None:
        head = beside(path, "head")
        if mark.identity != meta.identity:
            raise errors.witness_foreign(head)
        if mark.link.sequence > tip.sequence:
            raise errors.cut_off(path, tip.sequence, mark.link.sequence, head)
        if witnessed.sequence == mark.link.sequence and witnessed != mark.link:
            raise Damaged(f"batch {tip.sequence} is not the one that was acknowledged")
    return Contents(payloads, tip)
