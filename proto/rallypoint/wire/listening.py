"""Listens on an address, with a certificate that is renewed when its files are."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from rallypoint.base.log import get_logger
from rallypoint.wire.access import Access
from rallypoint.wire.certificate_dates import CertificateDates
from rallypoint.wire.credentials import READABLE, Credentials, find_readable

log = get_logger()


class CannotListen(Exception):
    """The port is in use, or the address is not this host's."""


def bind(
    server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Let a server listen; return the port.

    Args:
        server: not started.
        address: `host:port`; port 0: any free one.
        credentials: for TLS; None: connections are plain.

    Raises:
        CannotListen: when the port is in use, or the address is not this host's.
    """
    try:
        port: int
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}") from error
    return port


def read_credentials(access: Access) -> Credentials:
    """Read the files of a server's access; warn of a secret that every user can read.

    Raises:
        AccessFailed: one of them is of no use.
    """
    if path := find_readable(access):
        log.warning("secret_exposed", path=path, then=READABLE)
    return Credentials(access)


class Renewal:
    """Takes renewed files of an access, and says once why they are of no use."""

    def __init__(self, credentials: Credentials) -> None:
        """Begin without a look."""
        self._credentials = credentials
        self._dates = CertificateDates(credentials)
        self._problem = ""
        self._is_logged = False
        """The log has the problem."""

    def look(self) -> None:
        """Take renewed files. It may wait for the file system."""
        before = self._credentials.version
        self._credentials.look()
        problem = self._credentials.problem
        if problem != self._problem:  # perhaps one of two files is not replaced yet
            self._problem, self._is_logged = problem, False
        elif problem and not self._is_logged:
            self._is_logged = True
            if self._credentials.access.token_file:
                log.warning("access_not_renewed", why=problem, then="the old one counts")
            else:
                log.warning("certificate_rejected", why=problem, effect="the one before counts")
        if self._credentials.version != before:
            log.info("certificate_renewed")
        self._dates.look()


def serve_certificate(
    credentials: Credentials, note_begun: Callable[[], None] = lambda: None
) -> grpc.ServerCredentials:
    """Return what a server listens with; its certificate is replaced when `credentials` are.

    Args:
        credentials: with a `ca_file`, clients must show a certificate, too.
        note_begun: called by a thread of gRPC as a handshake begins.
    """
    lock, known = threading.Lock(), credentials.version

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal known
        note_begun()
        with lock:
            version = credentials.version
            if version == known:
                return None
            known = version
            return credentials.server_configuration()

    return grpc.dynamic_ssl_server_credentials(
        credentials.server_configuration(),
        fetch,  # type: ignore[arg-type]  # None: it has not changed
        require_client_authentication=bool(credentials.access.ca_file),
    )
