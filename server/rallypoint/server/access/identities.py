"""What a call shows of its caller, and who has made a call that another coordinator has forwarded.

The one that the client has called finds out who calls, and sends that instead of the token, signed
with the secret that only the coordinators of the store have. It is good for this call alone: one
method, one job, one shard, for a short time.
"""

from __future__ import annotations

import base64
import binascii
import glob
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from rallypoint.server.access import refusals
from rallypoint.server.access.caller import Caller, Proof, WorkerRound
from rallypoint.server.contract.calls import Context
from rallypoint.wire.access import Role
from rallypoint.wire.credentials import TOKEN_KEY, WORKER_TOKEN_KEY, sent_twice

KEY = "rallypoint-caller"
"""Metadata of a forwarded call."""
SHARD_KEY = "rallypoint-shard"
"""Metadata of a forwarded call."""
_KEYS = frozenset({KEY, SHARD_KEY, TOKEN_KEY, WORKER_TOKEN_KEY})
"""Metadata that says who makes a call."""
VALID_MS = 120_000
"""How far the clocks of two coordinators may be apart, both ways."""


class _Claims(Struct, frozen=True):
    """What is signed."""

    method: str
    shard: str
    at_ms: int
    peer: str
    name: str
    roles: tuple[Role, ...]
    proof: Proof
    jobs: tuple[str, ...]
    round: WorkerRound | None = None


class Identities:
    """Signs and verifies who has made a call."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """Begin without a secret; `clock_ms` returns Unix time."""
        self._clock_ms = clock_ms
        self._key = b""

    def use(self, secret: bytes) -> None:
        """Sign with a key of this secret from now on."""
        self._key = hmac.digest(secret, b"caller", "sha256")

    def sign(self, caller: Caller, *, method: str, shard: str, job_id: str, peer: str) -> str:
        """Return a text for the metadata of a call. Never log it.

        Args:
            caller: who has made the call, and was allowed to.
            method: its path.
            shard: that it is forwarded to.
            job_id: that it is about; empty: all jobs, or none.
            peer: that it has come from.
        """
        jobs = (glob.escape(job_id),) if job_id else ()
        claims = _Claims(
            *(method, shard, self._clock_ms(), peer),
            *(caller.name, caller.roles, caller.proof, jobs),
            caller.round,
        )
        text = base64.urlsafe_b64encode(msgspec.json.encode(claims)).decode()
        return f"{text}.{self._digest(text)}"

    def verify(self, signed: str, *, method: str, shard: str) -> tuple[Caller, str] | None:
        """Return who has made a forwarded call, and from where; None: it is not signed for this.

        Args:
            signed: from the metadata of the call.
            method: its path.
            shard: that it was forwarded to.
        """
        text, _, digest = signed.rpartition(".")
        if not self._key or not hmac.compare_digest(self._digest(text).encode(), digest.encode()):
            return None
        try:
            claims = msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Claims)
        except (msgspec.MsgspecError, binascii.Error):
            return None
        is_for_this = (claims.method, claims.shard) == (method, shard)
        if not is_for_this or abs(self._clock_ms() - claims.at_ms) > VALID_MS:
            return None
        said = (claims.name, claims.roles, claims.proof, claims.jobs)
        return Caller(*said, round=claims.round), claims.peer

    def _digest(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


def shown_by(context: Context) -> dict[str, str]:
    """Return the metadata that says who makes a call.

    Raises:
        AccessRefused: when one key has two values: a proxy could have added one of them.
    """
    shown = dict[str, str]()
    for key, value in context.invocation_metadata() or ():
        if key not in _KEYS or not isinstance(value, str):
            continue
        if key in shown:
            raise refusals.token_invalid(sent_twice(key))
        shown[key] = value
    return shown


def certificate_names(context: Context) -> tuple[str, ...]:
    """Return the common name and DNS names of the client's certificate, which gRPC has verified."""
    facts: Mapping[str, Any] = context.auth_context()
    return tuple(
        dict.fromkeys(
            value.decode("utf-8", "replace")
            for key in ("x509_common_name", "peer_dns")
            for value in facts.get(key, ())
        )
    )
