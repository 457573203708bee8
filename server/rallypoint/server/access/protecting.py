"""Protects a coordinator: TLS, and who may call. Looks at the files of both once a second.

Renewed certificates count for the next handshake, new rules for the next call and for the streams
that are open. Files that are no good change nothing, and the log says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.base.background import Background, Look, keep_looking
from rallypoint.server.access.auth_file import AuthFile, AuthFileInvalid
from rallypoint.server.access.gate import Gate
from rallypoint.server.access.handshakes import Handshakes
from rallypoint.server.access.protection import OPEN, Protection
from rallypoint.server.access.rules import EVERY_CERTIFICATE, Rules, RulesInvalid
from rallypoint.server.access.usage.lines import Lines
from rallypoint.wire.access import Access, AccessFailed
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.listening import Renewal, read_credentials, serve_certificate

LOOK_S = 1.0
"""Pause between two looks at the files."""
LINES_LOOK_S = 10.0
"""Pause between two looks whether lines of the log were left out in a minute that is over."""


class ProtectionInvalid(Exception):
    """A file or a token is of no use: one line that names it, without any content."""


class ProtectionSettings(Struct, frozen=True):
    """What a coordinator is protected with. Empty: nothing."""

    tls_cert: str = ""
    """PEM file with the certificate, and the chain after it; empty: no TLS."""
    tls_key: str = ""
    """PEM file with its private key."""
    tls_client_ca: str = ""
    """PEM file with the authorities of clients, which must show a certificate; empty: none does."""
    tls_ca: str = ""
    """PEM file with the authorities of the other coordinators; empty: those of clients, or else the
    system's."""
    auth_file: str = ""
    """Says whose token or certificate has which role; empty: none."""
    token: str = ""
    """One more token, with every role; empty: none."""
    audits: bool = True
    """Whether calls that are allowed have audit lines."""

    def __repr__(self) -> str:
        """Return no more than the name: there is a token."""
        return "ProtectionSettings(***)"

    @property
    def facts(self) -> Protection:
        """Return what the coordinator says about it."""
        asks = bool(self.auth_file or self.token or self.tls_client_ca)
        return Protection(bool(self.tls_cert), bool(self.tls_client_ca), asks)


class Protected(Struct):
    """The protection of a running coordinator."""

    facts: Protection = OPEN
    gate: Gate | None = None
    """None: it does not ask who calls."""
    listening: grpc.ServerCredentials | None = None
    """For TLS; None: connections are plain."""
    peers: Credentials | None = None
    """For connections to other coordinators; None: they are plain."""
    lines: Lines | None = None
    """Counts the lines of the log that each host causes; None: each part does for itself."""


UNPROTECTED = Protected()


class _Every:
    """Rules that never change."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules


@asynccontextmanager
async def protecting(
    settings: ProtectionSettings, failed: asyncio.Future[None]
) -> AsyncIterator[Protected]:
    """Prepare the protection, and keep it up to date while the context is open.

    Args:
        settings: what to protect with.
        failed: done, with an exception, when it is not kept up to date any more.

    Raises:
        ProtectionInvalid: when a file or the token is of no use.
    """
    lines = Lines(time.monotonic)
    protected, looks = Protected(lines=lines), list[Look]()
    if settings.facts != OPEN:
        try:
            protected, looks = await asyncio.to_thread(_prepare, settings, lines)
        except (AccessFailed, AuthFileInvalid, RulesInvalid) as error:
            raise ProtectionInvalid(str(error)) from error
    try:
        async with Background(failed) as background:
            background.start(keep_looking([lines.look], LINES_LOOK_S))
            if looks:
                background.start(keep_looking(looks, LOOK_S))
            yield protected
    finally:
        if protected.gate is not None:
            protected.gate.close()
        lines.close()


def _prepare(settings: ProtectionSettings, lines: Lines) -> tuple[Protected, list[Look]]:
    """Return the protection, and what looks at its files once a second."""
    facts, handshakes = settings.facts, Handshakes(time.monotonic)
    protected, looks = Protected(facts, lines=lines), list[Look]()
    if facts.tls:
        own = Access(
            is_tls=True,
            ca_file=settings.tls_client_ca,
            cert_file=settings.tls_cert,
            key_file=settings.tls_key,
        )
        certificate = read_credentials(own)
        protected.listening = serve_certificate(certificate, handshakes.note_begun)
        peers_ca = settings.tls_ca or settings.tls_client_ca
        protected.peers = Credentials(replace(own, ca_file=peers_ca))
        looks += [
            partial(asyncio.to_thread, Renewal(certificate).look),
            partial(asyncio.to_thread, protected.peers.look),
        ]
    if facts.authenticates:
        source: AuthFile | _Every = _Every(EVERY_CERTIFICATE)
        if settings.auth_file or settings.token:
            source = AuthFile(settings.auth_file, settings.token)
            if settings.auth_file:  # a token alone never changes
                looks.append(partial(asyncio.to_thread, source.look))
        seen = handshakes if facts.tls else None
        protected.gate = Gate(source, seen, lines=lines, audits=settings.audits)
        looks.append(protected.gate.look)
    return protected, looks
