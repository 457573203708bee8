"""Bytes are split into lines the same way however they arrive, as a simple second way confirms."""

from __future__ import annotations

import io
import random

import pytest

from rallypoint.agent.output.lines import (
    LINE_BYTES_MAX,
    Lines,
    PlainLines,
    UniformLines,
    select,
    with_prefix,
)

ALPHABET = [b"\n", b"\r", b"\r\n", b"a", b"bc", b"\x00", b"\xff\xfe", b"\xe2\x82"]


def run(lines: Lines, pieces: list[bytes]) -> list[bytes]:
    """Return the lines that each piece completed, and the rest."""
    return [*(lines.feed(piece) for piece in pieces), lines.flush()]


def cut(data: bytes, random: random.Random) -> list[bytes]:
    places = sorted(random.choices(range(len(data) + 1), k=5))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def read_as_text(data: bytes) -> bytes:
    """Return the lines as torchrun reads them: with universal newlines."""
    text = io.TextIOWrapper(io.BytesIO(data), encoding="latin-1").read()
    return (text + "\n" if text and not text.endswith("\n") else text).encode("latin-1")


@pytest.mark.parametrize("seed", range(20))
def test_pieces_do_not_matter(seed: int) -> None:
    """Any text in any pieces gives the same lines, each with the piece that ends it."""
    source = random.Random(seed)
    for _ in range(100):
        data = b"".join(source.choices(ALPHABET, k=source.randrange(30)))
        pieces = cut(data, source)
        uniform = run(UniformLines(), pieces)

        assert b"".join(uniform) == read_as_text(data), (data, pieces)
        assert all(brought.endswith(b"\n") for brought in uniform if brought)
        assert b"".join(run(PlainLines(), pieces)) == data, pieces


def test_line_waits_for_its_end() -> None:
    """An unfinished line is kept; plain lines report that they keep one."""
    uniform, plain = UniformLines(), PlainLines()

    assert [lines.feed(b"one\nhalf") for lines in (uniform, plain)] == [b"one\n", b"one\n"]
    assert (uniform.is_patient, plain.is_patient) == (True, False)
    assert [lines.feed(b" and half\r") for lines in (uniform, plain)] == [
        b"half and half\n",
        b"half and half\r",
    ]
    assert plain.is_patient
    assert [lines.feed(b"\nx\n") for lines in (uniform, plain)] == [b"x\n", b"\nx\n"]


@pytest.mark.parametrize("length", [LINE_BYTES_MAX - 1, LINE_BYTES_MAX])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_line_of_a_mebibyte_is_whole(length: int, end: bytes) -> None:
    """A long line is passed on in one piece, however it arrived."""
    line = bytes(range(32, 96)) * (length // 64 + 1)
    data = line[:length] + end
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]

    assert [found for found in run(UniformLines(), pieces) if found] == [line[:length] + b"\n"]


@pytest.mark.parametrize("length", [LINE_BYTES_MAX + 1, 3 * LINE_BYTES_MAX + 5])
def test_longer_line_is_cut(length: int) -> None:
    """A line over the limit is cut into lines of a mebibyte; nothing is lost."""
    data = b"x" * length + b"\nnext\n"
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    lines = b"".join(run(UniformLines(), pieces)).split(b"\n")

    assert lines[-2:] == [b"next", b""]
    assert {len(line) for line in lines[:-3]} == {LINE_BYTES_MAX}
    assert sum(map(len, lines[:-2])) == length


def test_plain_line_that_does_not_end_is_not_kept() -> None:
    """A plain line over a mebibyte is passed on as it arrives."""
    plain = PlainLines()
    came = [plain.feed(b"x" * 65_536) for _ in range(17)]

    assert [len(piece) for piece in came] == [0] * 16 + [17 * 65_536]


def test_prefix_and_filter() -> None:
    """Every line gets the prefix, also an empty one; a filter matches lines, not chunks."""
    lines = b"loss 1\n\nok\nLOSS\n\xffloss\n"

    assert with_prefix(lines, b"[0]:") == b"[0]:loss 1\n[0]:\n[0]:ok\n[0]:LOSS\n[0]:\xffloss\n"
    assert with_prefix(lines, b"") == lines
    assert with_prefix(b"", b"[0]:") == b""
    assert select(lines, [b"loss"]) == b"loss 1\n\xffloss\n"
    assert select(lines, [b"k", b"LO"]) == b"ok\nLOSS\n"
    assert select(lines, [b"ok\nL"]) == b""
