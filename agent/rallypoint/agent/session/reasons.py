"""Why a stream to the coordinator ended, in the words of a person instead of gRPC's."""

from __future__ import annotations

import grpc

_BROKE = "the connection broke"
_PLAIN = {
    "cancelling all calls": "the coordinator shut down",
    "goaway": "the coordinator shut down",
    "connection refused": "connection refused: no coordinator listens there",
    "keepalive": "the coordinator did not answer in time",
    "ping timeout": "the coordinator did not answer in time",
    "connection timed out": "the coordinator did not answer in time",
    "unreachable": "the network does not reach the coordinator",
    "no route to host": "the network does not reach the coordinator",
    "socket closed": _BROKE,
    "stream removed": _BROKE,
    "connection reset": _BROKE,
    "broken pipe": _BROKE,
    "endpoint closing": _BROKE,
    "transport closed": _BROKE,
    "rst_stream": _BROKE,
    "internal error from core": _BROKE,  # a message was not written before the stream ended
}
"""Parts of gRPC's texts at the end of a stream, in lower case, and their meanings. First match."""
_PLAIN_CODES = {
    grpc.StatusCode.UNAVAILABLE: _BROKE,
    grpc.StatusCode.CANCELLED: "the coordinator ended the stream",
    grpc.StatusCode.DEADLINE_EXCEEDED: "the coordinator did not answer in time",
}
"""The same for a status without a text."""


def plain_reason(details: str, code: grpc.StatusCode) -> str:
    """Return the reason for the end of a stream, with gRPC's own words replaced.

    Args:
        details: of the status; empty: it has none.
        code: of the status.
    """
    known = next((text for words, text in _PLAIN.items() if words in details.lower()), details)
    return known or _PLAIN_CODES.get(code, f"the stream ended ({code.name})")
