"""What `rallypoint journal show`, `verify`, `export` and `import` do."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rallypoint.cli.flags.flag import Values
from rallypoint.server.journal.archive.lines import read_lines, write_lines
from rallypoint.server.journal.archive.places import fill, read
from rallypoint.server.journal.archive.show import describe_records
from rallypoint.server.journal.interface import JournalFailed

NAME_WIDTH = 12
"""Columns for a name in what `verify` prints."""
LINE_BYTES_MAX = 1_073_741_824
"""Bytes of a line that an import reads: more than any batch has."""
_PRIVATE = 0o600


def show(args: Values) -> None:
    """Print records as JSON lines."""
    found: Iterable[dict[str, Any]] = describe_records(read(args.state), args.job)
    if args.last:
        found = deque(found, maxlen=args.last)
    for record in found:
        print(json.dumps(record, ensure_ascii=False))


def verify(args: Values) -> None:
    """Check a whole journal, and print what it holds."""
    from rallypoint.server.journal.archive.verify import describe, verify_contents

    contents = read(args.state)
    for name, text in (("journal", args.state), *describe(verify_contents(contents, args.state))):
        print(f"{name:{NAME_WIDTH}}{text}")


def export(args: Values) -> None:
    """Write a whole journal to a file that does not exist yet."""
    contents = read(args.state)
    path = Path(args.file)
    try:
        file = open(path, "xb", opener=_open_private)
    except FileExistsError as error:
        raise JournalFailed(f"{path}: this file exists already; choose a new one") from error
    with file:
        try:
            file.writelines(write_lines(contents))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    print(
        f"exported {len(contents.payloads)} batches to {path}, which only its owner can read: it "
        "holds the coordinator's secret"
    )


def restore(args: Values) -> None:
    """Write what was exported into a journal that does not exist yet."""
    from rallypoint.server.journal.archive.verify import verify_contents

    with open(args.file, "rb") as file:
        contents = read_lines(_lines(file), args.file)
    verify_contents(contents, args.file)
    fill(args.state, contents)
    print(f"imported {len(contents.payloads)} batches into {args.state}")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, _PRIVATE)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LINE_BYTES_MAX):
        yield line
