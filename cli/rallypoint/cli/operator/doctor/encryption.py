"""TLS: whether both sides mean it, whether the certificates are good, and for how long."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from rallypoint.cli.operator.doctor.findings import Finding, describe, ok, problem, warning
from rallypoint.cli.operator.doctor.network import Endpoint
from rallypoint.cli.operator.reaching import HUNG_UP, Heard, Speech, hear, make_context
from rallypoint.wire.access import PLAIN, Access, AccessFailed
from rallypoint.wire.certificates import (
    Certificate,
    Life,
    judge_life,
    read_certificate,
    read_pem,
)
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.handshakes import Fault, blind_context, read_fault

TLS, OWN_CERTIFICATE, TOKEN = "TLS", "own certificate", "token"
NAMES_SHOWN_MAX = 4
HANDSHAKE_S_MAX = 5.0
ANSWER_S_MAX = 2.0
"""A server sends its settings as soon as the connection is open."""
_RENEW = "renew it: rallypoint certs issue NAME --renew, or what has issued it"
_CLOCKS = "check the clocks of both hosts: date; chronyc tracking"


class Handshake(Struct, frozen=True):
    """A TLS handshake."""

    fault: Fault | None = None
    """None: both sides accept each other."""
    certificate: Certificate | None = None
    """Of the server. None: it could not be read."""
    error: str = ""
    """In the words of OpenSSL or of the operating system. Empty: it went well."""


def listen(at: Endpoint, limit_s: float = ANSWER_S_MAX) -> Heard:
    """Return what listens at an address. A gRPC server with TLS hangs up on what is not TLS."""
    heard = HUNG_UP
    with suppress(OSError), socket.create_connection((at.host, at.port), limit_s) as connection:
        heard = hear(connection, limit_s)
    if heard != HUNG_UP:
        return heard
    try:
        _read_server(at)
    except ssl.SSLError as error:
        return Heard(Speech.TLS) if "ALERT" in (error.reason or "") else heard
    except OSError:
        return heard
    return Heard(Speech.TLS)


def check_agreement(access: Access, speech: Speech) -> list[Finding]:
    """Judge whether both sides speak TLS, or both do not.

    Returns:
        A finding when they differ, or when neither does; empty when a handshake can show more.
    """
    if access.uses_tls and speech is Speech.HTTP2:
        text = "TLS is on here, and the coordinator speaks without"
        advice = (
            "leave out --tls and its files, or start the coordinator with --tls-cert, --tls-key"
        )
        return [problem(TLS, text, advice)]
    if not access.uses_tls and speech is Speech.TLS:
        text = "the coordinator speaks TLS, and TLS is off here"
        advice = (
            "add --tls-ca FILE with the authority of its certificate, or --tls for the system's"
        )
        return [problem(TLS, text, advice)]
    if not access.uses_tls:
        return [ok(TLS, "off on both sides: the network is not encrypted")]
    return []


def shake_hands(access: Access, at: Endpoint, host: str) -> Handshake:
    """Return how a handshake ends, as this side means to connect.

    Args:
        access: how it connects; its files can be read.
        at: the address.
        host: the name to verify if the access has none.
    """
    certificate = None
    with suppress(OSError, ValueError):
        certificate = read_certificate(_read_server(at))
    name = access.server_name or host
    try:
        with (
            socket.create_connection((at.host, at.port), HANDSHAKE_S_MAX) as connection,
            make_context(access).wrap_socket(connection, server_hostname=name) as wrapped,
        ):
            heard = hear(wrapped, HANDSHAKE_S_MAX)
    except ssl.SSLError as error:
        return Handshake(read_fault(error, PLAIN), certificate, _words(error))
    except OSError as error:
        return Handshake(Fault.OTHER, certificate, error.strerror or str(error))
    if heard == HUNG_UP:
        # gRPC hangs up without an alert when it does not accept a certificate, or misses one.
        return Handshake(Fault.CLIENT_WANTED, certificate, "it hangs up")
    if heard.speech is Speech.NOTHING:
        return Handshake(Fault.OTHER, certificate, "timed out")
    return Handshake(None, certificate)


def _read_server(at: Endpoint) -> bytes:
    """Return the certificate that a server shows, trusted or not: nothing is sent to it."""
    with (
        socket.create_connection((at.host, at.port), HANDSHAKE_S_MAX) as connection,
        blind_context(PLAIN).wrap_socket(connection) as wrapped,
    ):
        return wrapped.getpeercert(binary_form=True) or b""


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason = (error.reason or str(error)).lower().replace("_", " ")
    return reason.removeprefix("tlsv1 alert ").removeprefix("tlsv13 alert ")


def check_handshake(access: Access, host: str, shake: Handshake, now_s: float) -> Finding:
    """Judge a handshake.

    Args:
        access: how this side connects.
        host: as the user gave it.
        shake: how it went.
        now_s: Unix time.
    """
    expected = access.server_name or host
    one = shake.certificate
    match shake.fault:
        case None:
            return _judge_life(TLS, one, now_s, "the coordinator's certificate")
        case Fault.AUTHORITY:
            issuer = (one.issuer if one else "") or "an unnamed authority"
            text = f"the coordinator's certificate is from {issuer!r}, which is not trusted here"
            known = f"in {access.ca_file}" if access.ca_file else "among those of the system"
            advice = f"put the authority that signed it {known}, or name its file with --tls-ca"
        case Fault.WRONG_NAME:
            text = f"the coordinator's certificate is for {_show_names(one)}, not for {expected!r}"
            issue = f"rallypoint certs issue NAME --host {expected}"
            advice = f"use a name that it has, or issue one: {issue}"
        case Fault.EXPIRED:
            text = f"the coordinator's certificate ended {_since(one, now_s)}"
            advice = (
                "renew it on the coordinator's host, which reads new files by itself; check clocks"
            )
        case Fault.NOT_YET:
            text = "the coordinator's certificate is not valid yet by the clock of this host"
            advice = _CLOCKS
        case Fault.CLIENT_WANTED | Fault.CLIENT_REFUSED if not access.cert_file:
            text = "the coordinator wants a certificate of this side, and it shows none"
            advice = (
                "add --tls-cert FILE and --tls-key FILE; rallypoint certs issue NAME makes them"
            )
        case Fault.CLIENT_WANTED | Fault.CLIENT_REFUSED:
            text = f"the coordinator does not accept the certificate {access.cert_file}: "
            text += shake.error
            advice = (
                "use one of the authority in the coordinator's --tls-client-ca, which has not ended"
            )
        case _:
            text = f"the TLS handshake fails: {shake.error}"
            advice = (
                "check --tls-ca, --tls-cert and --tls-server-name here, and the coordinator's log"
            )
    return problem(TLS, text, advice)


def check_own(access: Access, now_s: float) -> list[Finding]:
    """Judge the files of this side, and its certificate."""
    try:
        Credentials(access)  # reads and checks all of them
        if not access.cert_file:
            return []
        one = read_pem(Path(access.cert_file).read_text("ascii", "replace"))
    except AccessFailed as failed:
        error = str(failed)
    except (OSError, ValueError) as changed:  # meanwhile
        error = f"cannot read {access.cert_file}: {changed}"
    else:
        name = one.subject or access.cert_file
        return [_judge_life(OWN_CERTIFICATE, one, now_s, f"the certificate {name!r}")]
    culprits = ((TOKEN, access.token_file), (TLS, access.ca_file))
    own = (OWN_CERTIFICATE, access.key_file if access.key_file in error else access.cert_file)
    check, path = next(((check, path) for check, path in culprits if path and path in error), own)
    return [problem(check, error, f"check the path and who may read it: ls -l {path or 'FILE'}")]


def _judge_life(check: str, one: Certificate | None, now_s: float, what: str) -> Finding:
    """Judge how long a certificate is still valid."""
    if one is None:
        return ok(check, "the handshake succeeds")
    life = judge_life(one, now_s)
    if life is Life.EXPIRED:
        return problem(check, f"{what} ended {_since(one, now_s)}", _RENEW)
    if life is Life.NOT_BEGUN:
        return problem(check, f"{what} is not valid yet by the clock of this host", _CLOCKS)
    text = f"{what} is valid for {describe(one.ends_s - now_s)} more"
    return warning(check, text, _RENEW) if life is Life.ENDS_SOON else ok(check, text)


def _since(one: Certificate | None, now_s: float) -> str:
    if one is None or one.ends_s > now_s:
        return "before now"
    return f"{describe(now_s - one.ends_s)} ago"


def _show_names(one: Certificate | None) -> str:
    names = (one.names or (one.subject,)) if one else ()
    shown = ", ".join(repr(name) for name in names[:NAMES_SHOWN_MAX] if name)
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    return f"{shown}{more}" or "no name"
