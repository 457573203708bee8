"""Shakes hands by TLS, and reads certificates."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rallypoint.cli.operator.doctor.facts import (
    Endpoint,
    Handshake,
    Trust,
    Wish,
)
from rallypoint.cli.operator.doctor.probes.network import HELLO
from rallypoint.cli.operator.reaching import make_context
from rallypoint.wire.access import PLAIN, Access, AccessFailed
from rallypoint.wire.certificates import Certificate, read_certificate, read_pem
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.handshakes import Fault, read_fault

HANDSHAKE_S_MAX = 5.0
_TRUST = {
    Fault.NOT_YET: Trust.NOT_YET_VALID,
    Fault.EXPIRED: Trust.EXPIRED,
    Fault.WRONG_NAME: Trust.WRONG_NAME,
    Fault.AUTHORITY: Trust.UNKNOWN_AUTHORITY,
    Fault.CLIENT_WANTED: Trust.CLIENT_REFUSED,
    Fault.CLIENT_REFUSED: Trust.CLIENT_REFUSED,
}


def shake_hands(wish: Wish, at: Endpoint, host: str) -> Handshake:
    """Return how a handshake ends, as this side means to connect.

    Args:
        wish: how it connects; its files can be read.
        at: the address.
        host: the name to verify if the wish has none.
    """
    certificate = _read_server(at)
    try:
        context = make_context(wish.ca_file, wish.cert_file, wish.key_file)
        if not _talk(context, at, wish.server_name or host):
            # gRPC hangs up without an alert when it does not accept a certificate, or misses one.
            return Handshake(Trust.CLIENT_REFUSED, certificate, "it hangs up")
    except ssl.SSLError as error:
        trust = _TRUST.get(read_fault(error, PLAIN), Trust.FAILED)
        return Handshake(trust, certificate, _words(error))
    except OSError as error:
        return Handshake(Trust.FAILED, certificate, error.strerror or str(error))
    return Handshake(Trust.TRUSTED, certificate)


def _talk(context: ssl.SSLContext, at: Endpoint, name: str) -> bool:
    """Shake hands; return whether the server then speaks: it judges this side after that."""
    with (
        socket.create_connection((at.host, at.port), HANDSHAKE_S_MAX) as connection,
        context.wrap_socket(connection, server_hostname=name) as wrapped,
    ):
        try:
            wrapped.sendall(HELLO)
            return bool(wrapped.recv(1))
        except ConnectionError:  # a reset is another way to hang up
            return False


def speaks_tls(at: Endpoint) -> bool:
    """Return whether what listens answers the first message of a TLS handshake in kind."""
    try:
        with _open_blindly(at):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _read_server(at: Endpoint) -> Certificate | None:
    """Return the certificate that a server shows, trusted or not."""
    with suppress(OSError, ValueError), _open_blindly(at) as connection:
        return read_certificate(connection.getpeercert(binary_form=True) or b"")
    return None


@contextmanager
def _open_blindly(at: Endpoint) -> Iterator[ssl.SSLSocket]:
    """Yield a connection to a server that nothing vouches for: nothing is sent to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((at.host, at.port), HANDSHAKE_S_MAX) as connection,
        context.wrap_socket(connection) as wrapped,
    ):
        yield wrapped


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return reason.removeprefix("tlsv1 alert ").removeprefix("tlsv13 alert ")


def read_own_files(access: Access) -> tuple[Certificate | None, str]:
    """Return the certificate of this side, and what is wrong with a file; empty: nothing."""
    try:
        Credentials(access)  # reads and checks all of them
        if not access.cert_file:
            return None, ""
        return read_pem(Path(access.cert_file).read_text("ascii", "replace")), ""
    except AccessFailed as error:
        return None, str(error)
    except (OSError, ValueError) as error:  # it changed meanwhile
        return None, f"cannot read {access.cert_file}: {error}"
