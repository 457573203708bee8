"""What `rallypoint journal show`, `verify`, `export` and `import` do."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import mkstemp
from typing import Any, BinaryIO

from rallypoint.base.terminal_text import has_unicode
from rallypoint.cli.flags.flag import Values
from rallypoint.server.journal.archive.contents import Contents
from rallypoint.server.journal.archive.lines import read_lines, write_lines
from rallypoint.server.journal.archive.places import fill, fitted, read
from rallypoint.server.journal.archive.show import describe_records
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.sqlite.file import sync_folder

NAME_WIDTH = 12
"""Columns for a name in what `verify` prints."""
LINE_BYTES_MAX = 1_073_741_824
"""Bytes of a line that an import reads: more than any batch has."""
STANDARD = "-"
"""Stands for standard input or output instead of a file."""


def show(args: Values) -> None:
    """Print records as JSON lines."""
    contents = read(args.state, args.job)
    found: Iterable[dict[str, Any]] = describe_records(contents, args.job)
    if args.last:
        found = deque(found, maxlen=args.last)
    for record in found:
        print(json.dumps(record, ensure_ascii=not has_unicode(sys.stdout)))


def verify(args: Values) -> None:
    """Check a whole journal, and print what it holds."""
    from rallypoint.server.journal.archive.verify import describe, verify_contents

    contents = read(args.state)
    for name, text in (("journal", args.state), *describe(verify_contents(contents, args.state))):
        print(f"{name:{NAME_WIDTH}}{text}")


def export(args: Values) -> None:
    """Write a whole journal to a file that does not exist yet, all of it or nothing."""
    if args.file == STANDARD:
        if sys.stdout.isatty():
            raise JournalFailed("it holds a secret, and a terminal would show it; name a file")
        sys.stdout.buffer.writelines(write_lines(read(args.state)))
        sys.stdout.buffer.flush()
        return
    path = Path(args.file)
    if os.path.lexists(path):
        raise _taken(path)
    contents = read(args.state)
    _write_whole(path, write_lines(contents))
    print(
        f"exported {_count(contents)} to {path}, which only its owner can read: it holds the "
        "coordinator's secret"
    )


def _write_whole(path: Path, lines: Iterable[bytes]) -> None:
    """Write a private file beside its place, and move it there when it is on the disk."""
    try:
        fd, beside = mkstemp(".partial", f"{path.name}.", path.parent)  # of its owner alone
    except OSError as error:
        error.filename = str(path)
        raise
    try:
        with open(fd, "wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(fd)
        try:
            os.link(beside, path)
        except FileExistsError as error:
            raise _taken(path) from error
        except OSError:  # a file system without hard links
            if os.path.lexists(path):
                raise _taken(path) from None
            os.rename(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)
    sync_folder(path.parent)


def _taken(path: Path) -> JournalFailed:
    return JournalFailed(f"{path}: this file exists already; choose a new one")


def restore(args: Values) -> None:
    """Write what was exported into a journal that does not exist yet."""
    from rallypoint.server.journal.archive.verify import verify_contents

    name = "standard input" if args.file == STANDARD else args.file
    if args.file == STANDARD:
        contents = read_lines(_lines(sys.stdin.buffer), name)
    else:
        with open(name, "rb") as file:
            contents = read_lines(_lines(file), name)
    verify_contents(contents, name)
    written = fitted(args.state, contents, args.shards)
    if written != contents:
        verify_contents(written, args.state)
    fill(args.state, written)
    print(f"imported {_count(written)} into {args.state}")


def _count(contents: Contents) -> str:
    """Return what was exported or imported."""
    batches = "1 batch" if contents.batches == 1 else f"{contents.batches} batches"
    shards = "1 shard" if contents.shard_count == 1 else f"{contents.shard_count} shards"
    return f"{batches} of {shards}" if contents.is_sharded else batches


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX):
        yield line
