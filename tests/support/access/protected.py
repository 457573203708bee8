"""A coordinator that asks who calls, and callers with all kinds of tokens and certificates."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
from msgspec import Struct

from rallypoint.server.access.protecting import ProtectionSettings
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.serve import Running, Settings, serving
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import TOKEN_KEY
from support.access.authority import Authority, Pair
from support.core.served import AT_ONCE, Served

HOST = "127.0.0.1"
AGENT, OPERATOR, VIEWER = (
    "agent-token-0123456789",
    "operator-token-01234567",
    "viewer-token-012345678",
)
RELAY = "relay-token-01234567890"
EXPIRED = "expired-token-012345678"
OTHER_AGENT, OTHER_OPERATOR = "other-agent-token-0123", "other-operator-token-01"
WRONG = "wrong-token-01234567890"


def digest_of(token: str) -> str:
    """Return what the auth file has of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def entry(name: str, role: str, *tokens: str, more: str = "") -> str:
    """Return a [[token]] of an auth file."""
    digests = [digest_of(token) for token in tokens]
    return f'[[token]]\nname = "{name}"\nrole = "{role}"\nsha256 = {digests}\n{more}\n'


RULES = "\n".join(
    (
        entry("trainer", "agent", AGENT),
        entry("ann", "operator", OPERATOR),
        entry("dash", "viewer", VIEWER),
        entry("rack", "relay", RELAY),
        entry("bob", "operator", EXPIRED, more="expires = 2020-01-01T00:00:00Z"),
        entry("other trainer", "agent", OTHER_AGENT, more='jobs = ["other*"]'),
        entry("other ann", "operator", OTHER_OPERATOR, more='jobs = ["other*"]'),
        '[[certificate]]\nname = "ops-*"\nrole = "operator"',
    )
)


def write_rules(path: Path, text: str = RULES) -> str:
    """Write an auth file that only its owner can read; return its path."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(path)
    return str(path)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata with a token; empty: none."""
    return ((TOKEN_KEY, f"Bearer {token}"),) if token else ()


class Site(Struct):
    """A protected coordinator."""

    running: Running
    authority: Authority
    server: Pair
    auth: Path

    def channel(
        self, pair: Pair | None = None, authority: Authority | None = None
    ) -> grpc.aio.Channel:
        """Return a channel with TLS.

        Args:
            pair: certificate of the client; None: none.
            authority: that the client trusts; None: the coordinator's.
        """
        trusted = Path((authority or self.authority).ca).read_bytes()
        key, chain = None, None
        if pair is not None:
            key, chain = Path(pair.key).read_bytes(), Path(pair.cert).read_bytes()
        credentials = grpc.ssl_channel_credentials(trusted, key, chain)
        target = f"{HOST}:{self.running.port}"
        return grpc.aio.secure_channel(target, credentials, options=client_options())

    def served(self, channel: grpc.aio.Channel) -> Served:
        """Return the coordinator for agents that speak by hand."""
        return Served(self.running, channel)


@asynccontextmanager
async def protected_site(
    folder: Path,
    *,
    rules: str = RULES,
    needs_client: bool = True,
    token: str = "",
    timing: Timing = AT_ONCE,
    begins: int = -10,
    days: int = 30,
) -> AsyncIterator[Site]:
    """Serve a coordinator with TLS and an auth file while the context is open.

    Args:
        folder: for its files.
        rules: text of the auth file; empty: it has none.
        needs_client: clients must show a certificate.
        token: one more, with every role.
        timing: of the coordinator.
        begins: days from now until its certificate is valid.
        days: from now until that ends.
    """
    authority = Authority(folder / "authority")
    pair = authority.issue("coordinator", [HOST], begins=begins, days=days)
    auth = folder / "auth.toml"
    protection = ProtectionSettings(
        tls_cert=pair.cert,
        tls_key=pair.key,
        tls_client_ca=authority.ca if needs_client else "",
        auth_file=write_rules(auth, rules) if rules else "",
        token=token,
    )
    async with serving(Settings(HOST, 0, timing, protection=protection)) as running:
        yield Site(running, authority, pair, auth)
