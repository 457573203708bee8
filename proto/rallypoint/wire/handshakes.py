"""Why a connection does not come about, in words that say what to do.

gRPC's own text has the reason when this side refuses the other's certificate. When the other side
refuses, it closes the connection without a word: a coordinator with TLS does that to a client
without, and one that wants certificates to a client without one. Then `probe` makes another
handshake, which shows more.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from rallypoint.base.addresses import parse_endpoint
from rallypoint.base.names import connect
from rallypoint.wire.access import Access

if TYPE_CHECKING:
    import ssl

PROBE_S_MAX = 2.0
"""How long a probe takes at most for each of its steps."""
DETAIL_CHARS_MAX = 120


class Fault(Enum):
    """Why no connection comes about. The value is for people: what is wrong, then what to do."""

    NO_TLS = "it does not use TLS: connect without --tls (RALLYPOINT_TLS=0)"
    NEEDS_TLS = (
        "it uses TLS: give --tls-ca FILE with its authority, or --tls if that is a public one"
    )
    EXPIRED = "its certificate has expired: renew it where the coordinator runs"
    NOT_YET = "its certificate is not valid yet: check the clocks of both hosts"
    WRONG_NAME = "its certificate is not for {}: check the address, or give --tls-server-name"
    AUTHORITY = "its certificate is of an unknown authority: check --tls-ca"
    CLIENT_WANTED = "it wants a certificate of this client: give --tls-cert and --tls-key"
    CLIENT_REFUSED = "it refuses this client's certificate: has it expired? is it of its client CA?"
    OTHER = "TLS handshake failed"


_PHRASES = (
    ("WRONG_VERSION_NUMBER", Fault.NO_TLS),
    ("PACKET_LENGTH_TOO_LONG", Fault.NO_TLS),
    ("certificate has expired", Fault.EXPIRED),
    ("not yet valid", Fault.NOT_YET),
    ("CERTIFICATE_VERIFY_FAILED", Fault.AUTHORITY),
    ("certificate signature failure", Fault.AUTHORITY),
    ("Hostname Verification Check failed", Fault.WRONG_NAME),
)
"""What the text of gRPC or of OpenSSL holds, and what it means."""
# X509_V_ERR_… of OpenSSL, x509_vfy.h.
_BY_CODE = {9: Fault.NOT_YET, 10: Fault.EXPIRED, 62: Fault.WRONG_NAME, 64: Fault.WRONG_NAME}
_ALERT = "ALERT"
"""What OpenSSL's name of an error has when the other side has sent an alert."""
_CLOSED = ("Socket closed", "reset by peer", "Broken pipe", "recvmsg")
"""What gRPC's text holds when the other side has closed the connection."""


def explain(text: str, target: str, access: Access) -> str:
    """Return what gRPC's text about a failed handshake means; empty: it is about something else.

    Args:
        text: of the status of a call.
        target: host:port of the other side.
        access: of this side.
    """
    if (fault := _find_phrase(text)) is not None:
        meaning: str = fault.value
        return meaning.format(_find_name(target, access))
    detail = text.partition("Ssl handshake failed")[2]
    return f"{Fault.OTHER.value}{detail[:DETAIL_CHARS_MAX]}" if detail else ""


def _find_name(target: str, access: Access) -> str:
    """Return the name that the certificate of the other side must have."""
    host = (parse_endpoint(target) or target).rpartition(":")[0]
    return access.server_name or host.strip("[]")


def read_fault(error: ssl.SSLError, access: Access) -> Fault:
    """Return what an error of Python's ssl module means for a client with this access."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return _BY_CODE.get(error.verify_code, Fault.AUTHORITY)
    reason = error.reason or str(error)
    if _ALERT in reason:  # the server judges this side after its own certificate was accepted
        return find_refusal(access)
    return _find_phrase(reason) or Fault.OTHER


def describe_fault(error: ssl.SSLError, access: Access, name: str) -> str:
    """Return an error of Python's ssl module in words that say what to do.

    Args:
        error: of a handshake, or of the first read after it.
        access: of the client.
        name: that the certificate was expected to have.
    """
    fault = read_fault(error, access)
    if fault is Fault.OTHER:
        reason = (error.reason or str(error)).replace("_", " ").lower()
        return f"{fault.value}: {reason[:DETAIL_CHARS_MAX]}"
    text: str = fault.value
    return text.format(name)


def find_refusal(access: Access) -> Fault:
    """Return why a server that wants a certificate of its clients refuses this one."""
    return Fault.CLIENT_REFUSED if access.cert_file else Fault.CLIENT_WANTED


def _find_phrase(text: str) -> Fault | None:
    return next((fault for phrase, fault in _PHRASES if phrase in text), None)


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
    refused = find_refusal(access).value
    try:
        with (
            connect(host.strip("[]"), int(port), timeout_s) as raw,
            blind_context(access).wrap_socket(
                raw, server_hostname=_find_name(target, access)
            ) as line,
        ):
            if not access.uses_tls:
                return Fault.NEEDS_TLS.value
            # It verifies this client after the handshake. gRPC then closes, others send an alert.
            return "" if line.recv(1) else refused
    except ssl.SSLError as error:
        return refused if access.uses_tls and _ALERT in (error.reason or "") else ""
    except (OSError, ValueError):
        return ""


def blind_context(access: Access) -> ssl.SSLContext:
    """Return a context that accepts every certificate: nothing is sent to the other side."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if access.cert_file and access.key_file:
        context.load_cert_chain(access.cert_file, access.key_file, "")
    return context
