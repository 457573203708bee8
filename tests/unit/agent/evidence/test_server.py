"""What listens on the socket of a worker may be anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rallypoint.agent.evidence.server import ANSWER_BYTES_MAX, NoHandler, ask


async def answered(folder: Path, answer: bytes) -> bytes:
    """Return what is made of an answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(folder / "s"))
    try:
        async with asyncio.timeout(30):
            return await ask(str(folder / "s"), "ping")
    finally:
        server.close()


async def test_answer(tmp_path: Path) -> None:
    """The body is returned, and nothing behind it."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nKeep-Alive: timeout=1\r\n\r\n"

    assert await answered(tmp_path, head + b"{}more") == b"{}"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", ConnectionError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", ConnectionError),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", NoHandler),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\n\r\n", ValueError),
        (b"\r\n\r\n", ValueError),
        (b"x" * 100_000, ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (ANSWER_BYTES_MAX + 1), ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", ValueError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ValueError),
    ],
)
async def test_other_answers_are_refused(
    tmp_path: Path, answer: bytes, kind: type[Exception]
) -> None:
    """Each by an exception that the collection expects."""
    with pytest.raises(kind):
        await answered(tmp_path, answer)


async def test_no_server(tmp_path: Path) -> None:
    """There is no file."""
    with pytest.raises(FileNotFoundError):
        await ask(str(tmp_path / "s"), "ping")
