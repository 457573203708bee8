"""Asks torch's worker server in a worker, over its Unix socket, by HTTP/1.1.

The server is C++ and needs no lock of the interpreter. Anything may listen there instead, so
answers are bounded.
"""

from __future__ import annotations

import asyncio

ANSWER_BYTES_MAX = 2 * 1024 * 1024
"""A full ring of torch's default size has about 0.9 MB."""
HEAD_BYTES_MAX = 16 * 1024
LENGTH_DIGITS_MAX = 16
GENERIC = "fr_trace_json"
"""The recorder of gloo and others."""
NCCL = "dump_nccl_trace_json"
"""That of NCCL, where torch has it."""
_OK, _NOT_FOUND = b"200", b"404"
_LENGTH = b"content-length"


class NoHandler(Exception):
    """The server does not know what was asked for."""


async def ask(socket: str, handler: str) -> bytes:
    """Return the answer of a handler. The caller sets the deadline.

    Raises:
        NoHandler: this torch does not have it.
        OSError: there is no server, or it hangs up.
        ValueError: it does not answer as a server should, or too much.
    """
    reader, writer = await asyncio.open_unix_connection(socket, limit=HEAD_BYTES_MAX)
    try:
        head = f"POST /handler/{handler} HTTP/1.1\r\nHost: worker\r\nContent-Length: 0\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        try:
            status, length = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise ConnectionError("it hung up") from error
        except asyncio.LimitOverrunError as error:
            raise ValueError("its answer is not HTTP") from error
    finally:
        writer.transport.abort()
    if status == _NOT_FOUND:
        raise NoHandler(handler)
    if status != _OK:
        raise ValueError(f"status {status.decode('ascii', 'replace')[:8]}")
    return body


def _parse_head(head: bytes) -> tuple[bytes, int]:
    """Return the status, and how many bytes follow."""
    first, *lines = head.split(b"\r\n")
    words = first.split()
    fields = dict(line.lower().split(b":", 1) for line in lines if b":" in line)
    length = fields.get(_LENGTH, b"").strip()
    if len(words) < 2 or not length.isdigit():
        raise ValueError("its answer is not HTTP")
    if len(length) > LENGTH_DIGITS_MAX or int(length) > ANSWER_BYTES_MAX:
        raise ValueError(f"its answer has over {ANSWER_BYTES_MAX >> 20} MiB")
    return words[1], int(length)
