"""Writes what the current format of the journal can hold, for the versions that come after it.

`make journal-format` runs it. It refuses to change a format that was released: then `FORMAT` has to
be raised.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rallypoint.server.journal.codec.batches import FORMAT, encode_batch
from rallypoint.server.journal.codec.json_form import to_json
from support.journal.contract import current_files, frozen_files, list_fields
from support.journal.full import full_records

FORMATS = Path(__file__).resolve().parent / "formats"
BATCH, LINES, FIELDS = "batch.binpb", "records.jsonl", "fields.txt"
NOW_MS, UNIX_MS = 86_400_000, 1_790_000_000_000
"""Times of the batch."""


def main() -> int:
    """Write the folder; return the exit code."""
    folder = FORMATS / str(FORMAT)
    fields = list_fields(current_files())
    frozen = list_fields(frozen_files())
    is_released = (folder / FIELDS).exists() and frozen == read_fields(FORMAT)
    if is_released and fields != frozen:
        print(f"format {FORMAT} is released: raise FORMAT in codec/batches.py", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    records = full_records()
    lines = [json.dumps(to_json(record)) for record in records]
    (folder / BATCH).write_bytes(encode_batch(records, NOW_MS, UNIX_MS))
    (folder / LINES).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / FIELDS).write_text("\n".join(fields) + "\n", encoding="utf-8")
    print(f"wrote {len(records)} records of format {FORMAT} to {folder}")
    return 0


def read_fields(format: int) -> list[str]:
    """Return the fields and values of a format."""
    return (FORMATS / str(format) / FIELDS).read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
