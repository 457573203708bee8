"""Whether a coordinator listens somewhere, and if not, what is wrong, in words.

gRPC tries again until the end of the call, and then says little. So a connection is made first: to
the port, with TLS if that is wanted, and as far as the first frame of HTTP/2.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rallypoint.base.names import Unresolved, connect, find
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
"""A look-up that takes longer is noted."""
HTTP2_BEGINS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client sends first: the preface of RFC 9113, and empty SETTINGS."""
FRAME_BYTES = 9
"""The header of a frame: three bytes of length, and its type."""
SETTINGS = 4
TLS_ALERT = 0x15


class _Unusable(Exception):
    """What listens there cannot be used; the text says why."""


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
            if access.uses_tls:
                with _wrap(connection, access, host) as secured:
                    _greet(secured, access)
            else:
                _greet(connection, access)
    except _Unusable as found:
        return str(found)
    except OSError as error:
        return _describe_error(error, access, host, limit_s)
    return ""


def make_context(ca_file: str, cert_file: str, key_file: str) -> ssl.SSLContext:
    """Return what judges a certificate as gRPC does; an empty file is none."""
    import ssl

    context = ssl.create_default_context(cafile=ca_file or None)
    # From Python 3.13 on a certificate must name the key of its authority. gRPC asks for no such
    # thing, and many authorities of companies leave it out.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2"])
    if cert_file:
        context.load_cert_chain(cert_file, key_file or None)
    return context


def _wrap(connection: socket.socket, access: Access, host: str) -> ssl.SSLSocket:
    context = make_context(access.ca_file, access.cert_file, access.key_file)
    return context.wrap_socket(connection, server_hostname=access.server_name or host)


def _greet(connection: socket.socket, access: Access) -> None:
    """Begin HTTP/2, and look at what comes back."""
    connection.sendall(HTTP2_BEGINS)
    answer = b""
    while len(answer) < FRAME_BYTES:
        part = connection.recv(FRAME_BYTES - len(answer))
        if not part:
            break
        answer += part
    if len(answer) == FRAME_BYTES and answer[3] == SETTINGS:
        return
    speaks_tls = answer[:1] == bytes((TLS_ALERT,))
    if speaks_tls or not answer:
        # A coordinator hangs up without a word: on a client without TLS, and on one without the
        # certificate that it wants.
        fault = find_refusal(access) if access.uses_tls else Fault.NEEDS_TLS
        text = fault.value if speaks_tls else f"it closes the connection; perhaps {fault.value}"
        raise _Unusable(text)
    raise _Unusable("another program listens there, not a coordinator")


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
