"""What protects a hosted coordinator: the token and the certificate that its node has as a client.

All nodes are given the same flags. So the coordinator shows the certificate of the node that hosts
it, and asks its clients for one of the authority that they check it against. Whether they will
accept each other is tried here, without a network: a coordinator that no node can verify would only
let them wait.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rallypoint.wire.access import TOKEN_CHARS_MIN, TOKEN_VARIABLE, Access, AccessFailed
from rallypoint.wire.credentials import Credentials, find_authorities

if TYPE_CHECKING:
    import ssl

NAMES_MAX = 8
"""Names of a certificate in a line."""
_MESSAGES_MAX = 8
"""Turns of a handshake; TLS 1.2 takes four."""
# X509_V_ERR_… of OpenSSL, x509_vfy.h.
_NOT_YET, _EXPIRED, _PURPOSE, _NAME, _ADDRESS = 9, 10, 26, 62, 64


class Protection:
    """How a coordinator is started, so that it admits the nodes of its job and no others."""

    def __init__(self, access: Access, host: str) -> None:
        """Read the files, and try them.

        Args:
            access: how the agents of the job prove who they are.
            host: of the endpoint, which nodes verify unless they have another name to verify.

        Raises:
            AccessFailed: the coordinator could not start, or no node would accept it; one line.
        """
        if access.uses_tls and not access.cert_file:
            raise AccessFailed(
                "this node hosts the coordinator, and has no certificate: give --tls-cert and "
                f"--tls-key of {_describe_issue(host)}, or RALLYPOINT_TLS=0"
            )
        ((_, bearer),) = Credentials(access).metadata() or (("", ""),)
        self.token = bearer.removeprefix("Bearer ")
        """That its clients must have; empty: they need none."""
        if 0 < len(self.token) < TOKEN_CHARS_MIN:
            raise AccessFailed(
                f"{access.token_file or TOKEN_VARIABLE} has fewer than {TOKEN_CHARS_MIN} "
                "characters, so it could be guessed: make one with `rallypoint token new`"
            )
        self.flags = _compute_flags(access)
        """For its command line: paths, nothing secret."""
        if access.uses_tls:
            _try_certificate(access, host)


def describe_admission(access: Access) -> str:
    """Return who may join the job, one line; empty: all who have its token."""
    if access.token or access.token_file:
        return ""
    if access.ca_file:
        return f"all who have a certificate of {access.ca_file}"
    more = " or --tls-ca" if access.uses_tls else ""
    return f"all who reach the port; RALLYPOINT_TOKEN{more} limits it"


def _compute_flags(access: Access) -> tuple[str, ...]:
    if not access.uses_tls:
        return ()
    files = {
        "--tls-cert": access.cert_file,
        "--tls-key": access.key_file,
        "--tls-client-ca": access.ca_file,
    }
    # The coordinator has another working directory.
    return tuple(f"{flag}={os.path.abspath(path)}" for flag, path in files.items() if path)


def _try_certificate(access: Access, host: str) -> None:
    """Shake hands as the nodes will do; raise AccessFailed when that fails."""
    import ssl

    name = access.server_name or host
    authorities = find_authorities(access)
    try:
        client = _new_context(access, ssl.PROTOCOL_TLS_CLIENT, authorities)
        if not authorities:
            client.load_default_certs()
        server = _new_context(access, ssl.PROTOCOL_TLS_SERVER, access.ca_file)
        server.verify_mode = ssl.CERT_REQUIRED if access.ca_file else ssl.CERT_NONE
        _shake_hands(client, server, name)
    except ssl.SSLCertVerificationError as error:
        raise AccessFailed(_explain(error, access, host, authorities)) from None
    except ssl.SSLError as error:
        why = (error.reason or str(error)).lower().replace("_", " ")
        raise AccessFailed(f"{access.cert_file} cannot be used for TLS: {why}") from None
    except OSError as error:  # replaced at this moment
        raise AccessFailed(f"cannot read {access.cert_file}: {error.strerror}") from None


def _new_context(access: Access, protocol: int, authorities: str) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(protocol)
    context.load_cert_chain(access.cert_file, access.key_file, "")
    if authorities:
        context.load_verify_locations(authorities)
    return context


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Let both sides shake hands in memory."""
    import ssl

    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up, server_hostname=name)
    answering = server.wrap_bio(up, down, server_side=True)
    for _ in range(_MESSAGES_MAX):
        for side in (asking, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass  # it is the other one's turn


def _explain(
    error: ssl.SSLCertVerificationError, access: Access, host: str, authorities: str
) -> str:
    """Return what is wrong with a certificate, and what to do, one line."""
    from rallypoint.wire.certificates import read_pem

    cert, issue = access.cert_file, _describe_issue(host)
    match error.verify_code:
        case code if code in (_NAME, _ADDRESS):
            every = read_pem(Path(cert).read_text("ascii", "replace")).names
            more = f" and {len(every) - NAMES_MAX} more" if len(every) > NAMES_MAX else ""
            names = ", ".join(every[:NAMES_MAX]) + more or "no host"
            if access.server_name:
                return f"{cert} is for {names}, not for {access.server_name} (--tls-server-name)"
            return (
                f"{cert} is for {names}, not for {host}: give all nodes --tls-server-name with one "
                f"of its names, or make another with {issue}"
            )
        case code if code == _EXPIRED:
            return f"{cert} has expired: renew it, such as with `rallypoint certs issue --renew`"
        case code if code == _NOT_YET:
            return f"{cert} is not valid yet: check the clock of this host"
        case code if code == _PURPOSE:
            return f"{cert} is not for servers and clients, and a host is both: use {issue}"
        case _:
            return f"{cert} is not of an authority in {authorities or 'the system'}: check --tls-ca"


def _describe_issue(host: str) -> str:
    return f"`rallypoint certs issue NAME --host {host}`"
