"""Looks a name up, connects, and listens to what answers."""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

from rallypoint.base.names import Unresolved, find
from rallypoint.base.printable import to_printable_line
from rallypoint.cli.operator.doctor.facts import Attempt, Endpoint, Heard, Lookup, Reach, Speech

LOOKUP_S_MAX = 10.0
"""As long as commands wait, so that it finds what they find."""
CONNECT_S_MAX = 3.0
ANSWER_S_MAX = 2.0
"""A server sends its settings as soon as the connection is open."""
ADDRESSES_MAX = 8
"""More addresses of one name would take too long to try."""
WORDS_CHARS_MAX = 60
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The preface of HTTP/2 and empty settings: RFC 9113, section 3.4."""
_FRAME_BYTES = 9
_SETTINGS = 4
_ALERT, _TLS_MAJOR = 0x15, 0x03
_UNANSWERED = frozenset({errno.ETIMEDOUT, errno.EAGAIN, errno.EINPROGRESS})


def look_up(host: str, limit_s: float = LOOKUP_S_MAX) -> Lookup:
    """Return what a name means; the resolver's own limit may be much longer."""
    began_s = time.monotonic()
    addresses, problem = tuple[str, ...](), ""
    try:
        addresses = find(host, limit_s).addresses
    except Unresolved as error:
        problem = "" if error.is_slow else str(error)
    return Lookup(host, addresses, problem, time.monotonic() - began_s)


def connect(lookup: Lookup, port: int, limit_s: float = CONNECT_S_MAX) -> list[Attempt]:
    """Return how each address answers, in order; the first that does ends it."""
    attempts = []
    for address in lookup.addresses[:ADDRESSES_MAX]:
        attempts.append(_attempt(address, port, limit_s))
        if attempts[-1].reach is Reach.OPEN:
            break
    return attempts


def _attempt(address: str, port: int, limit_s: float) -> Attempt:
    began_s = time.monotonic()
    try:
        with socket.create_connection((address, port), limit_s) as connection:
            took_s = time.monotonic() - began_s
            return Attempt(address, Reach.OPEN, took_s, connection.getsockname()[0])
    except ConnectionRefusedError:
        reach, text = Reach.REFUSED, ""
    except OSError as error:
        is_silent = isinstance(error, TimeoutError) or error.errno in _UNANSWERED
        reach = Reach.SILENT if is_silent else Reach.UNREACHABLE
        text = error.strerror or str(error)
    return Attempt(address, reach, time.monotonic() - began_s, error=text)


def listen(at: Endpoint, limit_s: float = ANSWER_S_MAX) -> Heard:
    """Return how what listens at an address answers the first bytes of HTTP/2."""
    answer = b""
    ends_s = time.monotonic() + limit_s
    try:
        with socket.create_connection((at.host, at.port), limit_s) as connection:
            connection.sendall(HELLO)
            while len(answer) < _FRAME_BYTES and (left_s := ends_s - time.monotonic()) > 0:
                connection.settimeout(left_s)
                more = connection.recv(4_096)
                if not more:
                    return classify(answer, is_closed=True)
                answer += more
    except TimeoutError:
        return classify(answer, is_closed=False)
    except OSError:  # a reset: it did not like what it got
        return classify(answer, is_closed=True)
    return classify(answer, is_closed=False)


def classify(answer: bytes, *, is_closed: bool) -> Heard:
    """Return what an answer to the first bytes of HTTP/2 shows about its sender."""
    if len(answer) >= _FRAME_BYTES and answer[3] == _SETTINGS and not any(answer[5:9]):
        return Heard(Speech.HTTP2)
    if len(answer) >= 2 and answer[0] == _ALERT and answer[1] == _TLS_MAJOR:
        return Heard(Speech.TLS)
    if answer:
        line = answer.splitlines()[0].decode("utf-8", "replace")
        words = to_printable_line(line).strip()[:WORDS_CHARS_MAX]
        return Heard(Speech.HTTP1 if words.startswith("HTTP/1") else Speech.OTHER, words)
    return Heard(Speech.OTHER if is_closed else Speech.NOTHING)


def is_own(address: str) -> bool:
    """Return whether an address is one of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))  # allowed for own addresses alone
        return True
    return False
