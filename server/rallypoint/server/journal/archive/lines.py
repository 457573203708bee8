"""A store as JSON lines: for a backup, for a bug report, and for the way to another store.

The first line says whose it is, with the secret of the coordinator. Each further line is a batch,
in protobuf's JSON; those of a shard say its number, one shard after another. The last line counts
them and has a digest of all lines before it, so a file that was cut off or changed is noticed.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from rallypoint.server.core.model.shards import SHARDS_MAX
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.codec.batches import check_format, decode_batch, encode_batch
from rallypoint.server.journal.codec.json_form import from_json, to_json
from rallypoint.server.journal.interface import SECRET_BYTES, JournalUnreadable

VERSION = 1
"""Of the lines; each batch says its own format."""
IDENTITY_DIGITS = 32
_TAIL = b'{"batches":'


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line."""

    rallypoint_journal: int
    """Version of the lines."""
    identity: str
    """Id of the coordinator."""
    secret: bytes
    """Its secret; base64 in JSON."""
    shards: int = 0
    """How many there are; 0: one journal has all jobs."""


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A batch."""

    shard: int = 0
    """Whose it is."""
    format: int
    """Of its records."""
    now_ms: int
    """Journal time."""
    unix_ms: int
    """The same moment as Unix time."""
    records: tuple[dict[str, Any], ...]
    """In order, as `to_json` returns them."""


class Tail(Struct, frozen=True, kw_only=True):
    """The last line."""

    batches: int
    """How many there are."""
    sha256: str
    """Of all lines before this one, with their ends; hexadecimal."""


_Kind = TypeVar("_Kind", Head, Line, Tail)


def write_lines(contents: Contents) -> Iterator[bytes]:
    """Yield the lines of a file, each with its end.

    Raises:
        JournalUnreadable: when a batch is damaged, or a newer version has written it.
    """
    digest = hashlib.sha256()
    head = Head(
        rallypoint_journal=VERSION,
        identity=contents.identity,
        secret=contents.secret,
        shards=contents.shard_count,
    )
    lines = (
        _line_of(shard, payload)
        for shard, payloads in enumerate(contents.journals)
        for payload in payloads
    )
    for line in map(_encode, chain((head,), lines)):
        digest.update(line)
        yield line
    yield _encode(Tail(batches=contents.batches, sha256=digest.hexdigest()))


def _line_of(shard: int, payload: bytes) -> Line:
    batch = decode_batch(payload)
    return Line(
        shard=shard,
        format=batch.format,
        now_ms=batch.now_ms,
        unix_ms=batch.unix_ms,
        records=tuple(map(to_json, batch.records)),
    )


def _encode(line: Struct) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def read_lines(lines: Iterable[bytes], name: str) -> Contents:
    """Return the store that a file holds.

    Args:
        lines: those of the file, each with its end.
        name: the file, for messages.

    Raises:
        JournalUnreadable: when it is no such file, is cut off or changed, or was written by a
            newer version.
    """
    digest, batches = hashlib.sha256(), 0
    numbered = enumerate(lines, 1)
    _, first = next(numbered, (1, b""))
    head = _read_head(first, name)
    digest.update(first)
    journals: list[list[bytes]] = [[] for _ in range(head.shards or 1)]
    for number, line in numbered:
        if line.startswith(_TAIL):
            tail = _decode(line, Tail, name)
            is_last = next(numbered, None) is None
            if not is_last or tail != Tail(batches=batches, sha256=digest.hexdigest()):
                raise JournalUnreadable(f"{name}: it was changed after it was exported")
            return Contents(
                identity=head.identity,
                secret=head.secret,
                journals=tuple(map(tuple, journals)),
                is_sharded=head.shards > 0,
            )
        shard, payload = _read_batch(line, f"{name}: line {number}")
        if not 0 <= shard < len(journals):
            raise JournalUnreadable(f"{name}: line {number}: there is no shard {shard}")
        journals[shard].append(payload)
        batches += 1
        digest.update(line)
    raise JournalUnreadable(f"{name}: its end is missing; export the journal again")


def _read_head(line: bytes, name: str) -> Head:
    head = _decode(line, Head, name)
    if head.rallypoint_journal > VERSION:
        raise JournalUnreadable(
            f"{name} was written by a newer rallypoint (version {head.rallypoint_journal}; this "
            f"one reads {VERSION}): upgrade this one"
        )
    is_hex = len(head.identity) == IDENTITY_DIGITS and set(head.identity) <= set(string.hexdigits)
    if not is_hex or len(head.secret) != SECRET_BYTES:
        raise JournalUnreadable(f"{name}: its first line has no valid identity or secret")
    if not 0 <= head.shards <= SHARDS_MAX:
        raise JournalUnreadable(
            f"{name}: {head.shards} is not a valid number of shards (1 to {SHARDS_MAX})"
        )
    return head


def _read_batch(line: bytes, where: str) -> tuple[int, bytes]:
    """Return the shard of a batch, and its bytes."""
    found = _decode(line, Line, where)
    try:
        check_format(found.format)
        records = [from_json(record) for record in found.records]
        return found.shard, encode_batch(records, found.now_ms, found.unix_ms)
    except JournalUnreadable as error:
        raise JournalUnreadable(f"{where}: {error}") from None


def _decode(line: bytes, kind: type[_Kind], name: str) -> _Kind:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = f"{name}: this is not what `rallypoint journal export` writes"
        raise JournalUnreadable(text) from None
