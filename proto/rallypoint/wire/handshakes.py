"""Why a connection does not come about, in words that say what to do.

gRPC's own text has the reason when this side refuses the other's certificate. When the other side
refuses, it closes the connection without a word: a coordinator with TLS does that to a client
without, and one that wants certificates to a client without one. Then `probe` makes another
handshake, which shows more.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from rallypoint.base.addresses import parse_endpoint
from rallypoint.wire.access import Access

if TYPE_CHECKING:
    import ssl

PROBE_S_MAX = 2.0
"""How long a probe takes at most for each of its steps."""
DETAIL_CHARS_MAX = 120
NO_TLS = "it does not use TLS: connect without --tls (RALLYPOINT_TLS=0)"
NEEDS_TLS = "it uses TLS: give --tls-ca FILE with its authority, or --tls if that is a public one"
EXPIRED = "its certificate has expired: renew it where the coordinator runs"
NOT_YET = "its certificate is not valid yet: check the clocks of both hosts"
AUTHORITY = "its certificate is of an unknown authority: check --tls-ca"
CLIENT_WANTED = "it wants a certificate of this client: give --tls-cert and --tls-key"
CLIENT_REFUSED = "it refuses this client's certificate: has it expired? is it of its client CA?"
_PHRASES = (
    ("WRONG_VERSION_NUMBER", NO_TLS),
    ("certificate has expired", EXPIRED),
    ("not yet valid", NOT_YET),
    ("CERTIFICATE_VERIFY_FAILED", AUTHORITY),
    ("certificate signature failure", AUTHORITY),
)
"""What gRPC's text holds, and what it means."""
_ALERT = "ALERT"
"""What OpenSSL's name of an error has when the other side has sent an alert."""
_CLOSED = ("Socket closed", "reset by peer", "Broken pipe", "recvmsg")
"""What gRPC's text holds when the other side has closed the connection."""


def explain(text: str) -> str:
    """Return what gRPC's text about a failed handshake means; empty: it is about something else."""
    if "Peer name " in text:
        name = text.partition("Peer name ")[2].partition(" ")[0]
        return f"its certificate is not for {name}: check the address, or give --tls-server-name"
    for phrase, meaning in _PHRASES:
        if phrase in text:
            return meaning
    detail = text.partition("Ssl handshake failed")[2]
    return f"TLS handshake failed{detail[:DETAIL_CHARS_MAX]}" if detail else ""


def is_closed(text: str) -> bool:
    """Return whether gRPC's text is about a connection that the other side has closed."""
    return any(phrase in text for phrase in _CLOSED)


def probe(target: str, access: Access, timeout_s: float = PROBE_S_MAX) -> str:
    """Return why the other side closes the connection; empty: not because of TLS.

    It waits for the network: an event loop calls it in a thread.

    Args:
        target: host:port.
        access: of the client.
        timeout_s: longest wait for the connection, for the handshake, and for an alert.
    """
    import ssl

    endpoint = parse_endpoint(target)
    if endpoint is None:
        return ""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    refused = CLIENT_REFUSED if access.cert_file else CLIENT_WANTED
    try:
        with (
            socket.create_connection((host, int(port)), timeout_s) as raw,
            _context(access).wrap_socket(raw, server_hostname=access.server_name or host) as line,
        ):
            if not access.uses_tls:
                return NEEDS_TLS
            # It verifies this client after the handshake. gRPC then closes, others send an alert.
            return "" if line.recv(1) else refused
    except ssl.SSLError as error:
        return refused if access.uses_tls and _ALERT in (error.reason or "") else ""
    except (OSError, ValueError):
        return ""


def _context(access: Access) -> ssl.SSLContext:
    """Return a context that accepts every certificate: nothing is sent to the other side."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if access.cert_file and access.key_file:
        context.load_cert_chain(access.cert_file, access.key_file, "")
    return context
