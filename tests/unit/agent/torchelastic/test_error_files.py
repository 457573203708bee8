"""The error files of workers: every form that torch writes or accepts, and invalid ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.agent.torchelastic.error_files import ERROR_FILE_BYTES_MAX, read_error_file
from rallypoint.base.limits import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX

WRITTEN_S = 1_763_730_154
STACK = "Traceback (most recent call last):\n  File x\nValueError: bad"


def torch_form(**message: object) -> dict[str, object]:
    extra = {"py_callstack": STACK + "\n", "timestamp": "1763730000"}
    return {"message": {"message": "ValueError: bad", "extraInfo": extra, **message}}


WHOLE = ErrorRecord("ValueError: bad", STACK, 250, 1_763_730_000)


def read(path: Path) -> ErrorRecord | None:
    """Read an error file of a worker that ended 250 ms after it was written."""
    os.utime(path, (WRITTEN_S, WRITTEN_S))
    return read_error_file(path, WRITTEN_S + 0.25)


@pytest.mark.parametrize(
    ("claim", "content", "expected"),
    [
        ("as @record writes it", torch_form(), WHOLE),
        ("of a launcher in between", torch_form(errorCode=7), WHOLE),
        (
            "with traits",
            {**torch_form(), "errorTraits": {"category": "x", "retryability": "False"}},
            WHOLE,
        ),
        (
            "time as a number",
            torch_form(extraInfo={"py_callstack": STACK, "timestamp": 1_763_730_000.9}),
            WHOLE,
        ),
        (
            "no extra information",
            {"message": {"message": "lost"}},
            ErrorRecord("lost", "", 250, None),
        ),
        (
            "only a stack",
            {"message": {"extraInfo": {"py_callstack": STACK}}},
            ErrorRecord("ValueError: bad", STACK, 250, None),
        ),
        (
            "plain message with a time",
            {"message": "lost", "timestamp": 1_763_730_000},
            ErrorRecord("lost", "", 250, 1_763_730_000),
        ),
        ("plain message", {"message": "lost"}, ErrorRecord("lost", "", 250, None)),
        (
            "a message of another type",
            {"message": [1, "two"]},
            ErrorRecord('[1, "two"]', "", 250, None),
        ),
        ("no message", {"reason": "é"}, ErrorRecord('{"reason": "é"}', "", 250, None)),
        ("a list", ["a", 1], ErrorRecord('["a", 1]', "", 250, None)),
        ("a text", "lost", ErrorRecord("lost", "", 250, None)),
        (
            "half a surrogate pair",
            {"message": "a\ud800b"},
            ErrorRecord("a?b", "", 250, None),
        ),
        ("a long message", {"message": "x" * 9_999}, ErrorRecord("x" * MESSAGE_CHARS_MAX, "", 250)),
        (
            "a long stack: its end",
            {"message": {"message": "m", "extraInfo": {"py_callstack": "x" * 99_999 + "\ny"}}},
            ErrorRecord("m", "x" * (TRACEBACK_CHARS_MAX - 2) + "\ny", 250),
        ),
        (
            "a time of no sense",
            {"message": "lost", "timestamp": "soon"},
            ErrorRecord("lost", "", 250),
        ),
        (
            "a time beyond all",
            {"message": "lost", "timestamp": 253_402_300_799},
            ErrorRecord("lost", "", 250),
        ),
        (
            "a time of no number",
            {"message": "lost", "timestamp": float("nan")},
            ErrorRecord("lost", "", 250),
        ),
        ("nothing in it", {}, None),
        ("null", None, None),
    ],
)
def test_forms(tmp_path: Path, claim: str, content: object, expected: ErrorRecord | None) -> None:
    """Any JSON is used as far as it is valid."""
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))

    assert read(path) == expected, claim


@pytest.mark.parametrize(
    ("claim", "content", "expected"),
    [
        ("empty", b"", None),
        ("cut off", b'{"message": {"message": "Val', None),
        ("no JSON", b"Segmentation fault", None),
        ("without end", b"[" * 500_000, None),
        ("a number of too many digits", b"1" * 5_000, None),
        ("a byte order mark", b'\xef\xbb\xbf{"message": "lost"}', ErrorRecord("lost", "", 250)),
        (
            "Latin-1",
            '{"message": "größer"}'.encode("latin-1"),
            ErrorRecord("gr\ufffd\ufffder", "", 250),
        ),
        (
            "too large",
            b'"' + b"x" * ERROR_FILE_BYTES_MAX,
            ErrorRecord("the error file is larger than 1048576 bytes", "", 250, WRITTEN_S),
        ),
    ],
)
def test_bytes(tmp_path: Path, claim: str, content: bytes, expected: ErrorRecord | None) -> None:
    """A file without JSON counts as no file; a few bytes that are not text do no harm."""
    path = tmp_path / "error.json"
    path.write_bytes(content)

    assert read(path) == expected, claim


def test_what_is_no_file(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe without a writer and a device do not block the agent."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "secret").write_text('{"message": "x"}')
    (tmp_path / "secret").chmod(0)

    for name in ("nothing", "folder", "pipe", "device", "loop"):
        assert read_error_file(tmp_path / name, 1.0) is None, name
    if os.geteuid() != 0:  # root may read everything
        assert read_error_file(tmp_path / "secret", 1.0) is None


def test_json_that_is_too_deep_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter reads some that it cannot write. It counts as no record."""

    def refuse(*_: object, **__: object) -> str:
        raise RecursionError

    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": {"message": [["deep"]]}}))
    monkeypatch.setattr("rallypoint.agent.torchelastic.error_files.json.dumps", refuse)

    assert read_error_file(path, 0.0) is None
