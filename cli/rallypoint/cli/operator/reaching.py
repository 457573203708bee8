"""Reaches a coordinator, and says what is wrong, in words.

gRPC tries again until the end of the call, and then says little. So a command connects first: to
the port, with TLS if that is wanted, and as far as the first frame of HTTP/2. `doctor` takes the
same steps one by one.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

from rallypoint.base.names import Unresolved, connect, find
from rallypoint.base.printable import to_printable_line
from rallypoint.cli.operator.failures import NotReached
from rallypoint.wire.handshakes import Fault, describe_fault, find_refusal

if TYPE_CHECKING:
    import ssl

    from rallypoint.wire.access import Access

CONNECT_S_MAX = 3.0
"""How long one coordinator may take to accept a connection: a packet may be lost twice."""
LOOK_UP_S_MAX = 10.0
"""How long the look-up of its name may take: a command has one attempt."""
SLOW_S = 1.0
"""A look-up that takes longer is noted: every connection waits for it."""
WORDS_CHARS_MAX = 60
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client sends first: the preface of RFC 9113, section 3.4, and empty SETTINGS."""
_FRAME_BYTES = 9
"""The header of a frame: three bytes of length, its type, flags, and the stream."""
_SETTINGS = 4
_ALERT, _TLS_MAJOR = 0x15, 0x03


class Speech(Enum):
    """What a program that listens answers to the first bytes of HTTP/2."""

    HTTP2 = "http2"
    TLS = "tls"
    HTTP1 = "http1"
    OTHER = "other"
    """Something else, or it closed the connection."""
    NOTHING = "nothing"


class Heard(Struct, frozen=True):
    """The answer of a program that listens."""

    speech: Speech
    words: str = ""
    """Its first line, as far as it is printable. Empty for HTTP/2 and TLS."""


HUNG_UP = Heard(Speech.OTHER)


@contextmanager
def no_sigpipe() -> Iterator[None]:
    """Ignore SIGPIPE meanwhile: a command dies of it, as it should when its output has no reader.

    A server that hangs up must not be the end of the command.
    """
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


def check_reachable(
    endpoints: str, access: Access, timeout_s: float, note: Callable[[str], None]
) -> None:
    """Connect to one of the coordinators, and hang up.

    Args:
        endpoints: `host:port`, with commas in between.
        access: whether to use TLS, and what for.
        timeout_s: for each of them.
        note: shows a line about a look-up that takes long.

    Raises:
        NotReached: none of them can be used.
    """
    failures = list[str]()
    for endpoint in endpoints.split(","):
        with no_sigpipe():
            limit_s = min(timeout_s, CONNECT_S_MAX)
            look_up_s = min(timeout_s, LOOK_UP_S_MAX)
            _note_slow_name(endpoint, look_up_s, note)
            problem = find_problem(endpoint, access, limit_s, look_up_s)
        if not problem:
            return
        failures.append(f"{endpoint}: {problem}")
    raise NotReached(f"no coordinator answers at {'; '.join(failures)}")


def _note_slow_name(endpoint: str, limit_s: float, note: Callable[[str], None]) -> None:
    """Show a line if the look-up of a name takes long; the connection waits for the same one."""
    try:
        find(endpoint.rpartition(":")[0].strip("[]"), min(limit_s, SLOW_S))
    except Unresolved as error:
        if error.is_slow and limit_s > SLOW_S:
            note(f"{error}; waiting for up to {limit_s:g} s")


def find_problem(
    endpoint: str, access: Access, limit_s: float, look_up_s: float = LOOK_UP_S_MAX
) -> str:
    """Return why no coordinator can be used at `host:port`, in words; empty: one can."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    try:
        with connect(host, int(port), limit_s, look_up_s) as connection:
            if not access.uses_tls:
                heard = hear(connection, limit_s)
            else:
                name = access.server_name or host
                with make_context(access).wrap_socket(connection, server_hostname=name) as secured:
                    heard = hear(secured, limit_s)
    except OSError as error:
        return _describe_error(error, access, host, limit_s)
    # A coordinator hangs up without a word: on a client without TLS, and on one without the
    # certificate that it wants.
    fault = find_refusal(access) if access.uses_tls else Fault.NEEDS_TLS
    match heard:
        case Heard(speech=Speech.HTTP2):
            return ""
        case Heard(speech=Speech.TLS):
            return str(fault.value)
        case Heard(speech=Speech.NOTHING):
            return f"no answer within {limit_s:.3g} s"
        case Heard(words=""):
            return f"it closes the connection; perhaps {fault.value}"
        case _:
            return "another program listens there, not a coordinator"


def hear(connection: socket.socket, limit_s: float) -> Heard:
    """Return how what listens answers the first bytes of HTTP/2, within a limit.

    Raises:
        ssl.SSLError: it does not accept this side's certificate, and says so.
    """
    answer = b""
    ends_s = time.monotonic() + limit_s
    try:
        connection.sendall(_HELLO)
        while len(answer) < _FRAME_BYTES:
            connection.settimeout(max(ends_s - time.monotonic(), 0.001))
            if not (more := connection.recv(4_096)):
                return classify(answer, is_closed=True)
            answer += more
    except TimeoutError:
        pass
    except ConnectionError:  # a reset is another way to hang up
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
    return HUNG_UP if is_closed else Heard(Speech.NOTHING)


def make_context(access: Access) -> ssl.SSLContext:
    """Return what judges a certificate as gRPC does."""
    import ssl

    context = ssl.create_default_context(cafile=access.ca_file or None)
    # From Python 3.13 on a certificate must name the key of its authority. gRPC asks for no such
    # thing, and many authorities of companies leave it out.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    if access.cert_file:
        context.load_cert_chain(access.cert_file, access.key_file or None)
    return context


def _describe_error(error: OSError, access: Access, host: str, limit_s: float) -> str:
    """Return why a connection failed, in words."""
    import ssl

    if isinstance(error, ssl.SSLError):
        return describe_fault(error, access, access.server_name or host)
    if isinstance(error, Unresolved):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {limit_s:.3g} s"
    return (error.strerror or str(error)).lower()
