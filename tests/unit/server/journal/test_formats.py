"""Every released format opens: each has a folder, which `make journal-format` has written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.journal.codec.batches import (
    FORMAT,
    Batch,
    decode_batch,
    encode_batch,
    to_message,
)
from rallypoint.server.journal.codec.json_form import from_json, to_json
from support.journal.contract import (
    PACKAGE,
    REPOSITORY,
    current_files,
    frozen_files,
    list_fields,
)
from support.journal.full import full_records
from support.journal.write_format import (
    BATCH,
    FORMATS,
    LINES,
    NOW_MS,
    UNIX_MS,
    read_fields,
)

LIMIT_S = 60
KNOWN = sorted(int(path.name) for path in FORMATS.iterdir())


def test_every_format_has_a_folder() -> None:
    """From the first one to the one that this version writes."""
    assert list(range(1, FORMAT + 1)) == KNOWN


def test_current_format_is_as_kept() -> None:
    """Otherwise run `make journal-format`."""
    assert list_fields(current_files()) == read_fields(FORMAT)
    assert (
        encode_batch(full_records(), NOW_MS, UNIX_MS)
        == (FORMATS / str(FORMAT) / BATCH).read_bytes()
    )


def test_addition_raises_the_format() -> None:
    """The number says which version reads a journal: what is released does not grow."""
    frozen = list_fields(frozen_files())

    assert not frozen or frozen == list_fields(current_files()) or frozen != read_fields(FORMAT)


@pytest.mark.parametrize("format", KNOWN)
def test_format_opens(format: int) -> None:
    """With everything that it holds; what came later has its default."""
    folder = FORMATS / str(format)
    batch = decode_batch((folder / BATCH).read_bytes())
    lines = [json.loads(line) for line in (folder / LINES).read_text("utf-8").splitlines()]

    assert Batch(format, NOW_MS, UNIX_MS, tuple(map(from_json, lines))) == batch
    for line, record in zip(lines, batch.records, strict=True):
        assert_holds(to_json(record), line)


def assert_holds(whole: Any, part: Any) -> None:
    """Assert that one JSON value has everything of another one."""
    if isinstance(part, dict):
        for name, value in part.items():
            assert_holds(whole[name], value)
    elif isinstance(part, list):
        for one, other in zip(whole, part, strict=True):
            assert_holds(one, other)
    else:
        assert whole == part


def test_other_programs_read_a_batch() -> None:
    """buf knows nothing but the .proto files."""
    batch = FORMATS / str(FORMAT) / BATCH
    buf = str(Path(sys.executable).with_name("buf"))
    asked = f"--type={PACKAGE}.Batch", f"--from={batch}", "--to=-#format=json"
    run = [buf, "convert", str(REPOSITORY / "proto"), *asked]
    done = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    found = ParseDict(json.loads(done.stdout), batch_pb2.Batch())
    assert found == batch_pb2.Batch.FromString(batch.read_bytes())


def test_kept_records_have_every_field() -> None:
    """Each field of each message is set somewhere, and each value of each enum."""
    seen: set[str] = set()
    for message in map(to_message, full_records()):
        _note_fields(message, seen)

    named = {line.split(" ")[0] for line in read_fields(FORMAT)}
    expected = {name for name in named if not name.endswith("_UNSPECIFIED")}
    assert seen == {name for name in expected if not name.startswith("Batch.")}


def _note_fields(message: Any, seen: set[str]) -> None:
    for field, value in message.ListFields():
        seen.add(f"{message.DESCRIPTOR.name}.{field.name}")
        for one in value if field.is_repeated else (value,):
            if field.message_type is not None:
                _note_fields(one, seen)
            elif field.enum_type is not None:
                seen.add(f"{field.enum_type.name}.{field.enum_type.values_by_number[one].name}")
