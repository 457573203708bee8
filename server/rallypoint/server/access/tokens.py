"""The tokens by which workers prove that they belong to a round, and agents resume their sessions.

A worker's token names its job, run and round, with a keyed digest of them; an agent's is a keyed
digest of its session's id. The keys cannot be guessed and belong to the journal, so no token has to
be stored, and a coordinator that starts again knows its own. Without a durable journal the core
accepts the token that the members of an adopted round hold.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Iterable

from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import Coordinator, InputRefused
from rallypoint.wire.credentials import WORKER_TOKEN_KEY

KEY_BYTES = 32


async def require_worker(coordinator: Coordinator, state: State, claim: Claim) -> None:
    """Refuse who is no worker of a round, before its request takes time.

    Args:
        coordinator: of the job.
        state: the live state.
        claim: what the token of the call says.

    Raises:
        InputRefused: when what it is refused for is in the journal.
    """
    checked = check_claim(Draft(state, coordinator.now_ms()), claim)
    if isinstance(checked, Refusal):
        raise InputRefused(await coordinator.read(lambda state, now_ms: checked))


class WorkerTokens:
    """Makes and checks the tokens of one coordinator."""

    def __init__(self, coordinator_id: str, secret: bytes | None = None) -> None:
        """Derive the key.

        Args:
            coordinator_id: part of what is signed.
            secret: the journal's; None: a random one, for this process alone.
        """
        self._coordinator_id = coordinator_id
        self._key = hmac.digest(secret or secrets.token_bytes(KEY_BYTES), b"worker", "sha256")
        self._latest: tuple[tuple[str, int, int], str] | None = None
        """The latest token and what it was made for: all nodes of a round get the same."""

    def make(self, job_id: str, run: int, round: int) -> str:
        """Return the token of a round's workers: printable, without spaces. Never log it."""
        made_for = (job_id, run, round)
        if self._latest is None or self._latest[0] != made_for:
            job = base64.urlsafe_b64encode(job_id.encode()).decode().rstrip("=")
            token = f"{run}.{round}.{job}.{self._sign(job_id, run, round)}"
            self._latest = (made_for, token)
        return self._latest[1]

    def claim(self, job_id: str, metadata: Iterable[tuple[str, str | bytes]] | None) -> Claim:
        """Return what the token of a call says.

        Args:
            job_id: the job that the call is about.
            metadata: of the call.

        Raises:
            InputRefused: when there is no token, or that of another job.
        """
        token = next((value for key, value in metadata or () if key == WORKER_TOKEN_KEY), None)
        if token is None:
            raise InputRefused(Refusal(RefusalKind.TOKEN_MISSING))
        claim = self.read(token) if isinstance(token, str) else None
        if claim is None:
            raise InputRefused(Refusal(RefusalKind.TOKEN_REFUSED))
        if claim.job_id != job_id:
            kind = RefusalKind.OTHER_JOB if claim.is_signed else RefusalKind.TOKEN_REFUSED
            raise InputRefused(Refusal(kind, (("job_id", job_id),)))
        return claim

    def read(self, token: str) -> Claim | None:
        """Return what a token says, and whether it is genuine; None: it is no token."""
        try:
            run_text, round_text, job, digest = token.split(".")
            run, round = int(run_text), int(round_text)
            job_id = base64.urlsafe_b64decode(job + "=" * (-len(job) % 4)).decode()
        except (ValueError, binascii.Error):
            return None
        signed = self._sign(job_id, run, round)
        is_signed = hmac.compare_digest(signed.encode(), digest.encode())
        return Claim(JobId(job_id), run, round, token, is_signed)

    def _sign(self, job_id: str, run: int, round: int) -> str:
        said = "\0".join((self._coordinator_id, str(run), str(round), job_id))
        return hmac.digest(self._key, said.encode(), "sha256").hex()


class ResumeTokens:
    """Makes and checks the tokens of one coordinator."""

    def __init__(self, secret: bytes | None = None) -> None:
        """Derive the key.

        Args:
            secret: the journal's; None: a random one, for this process alone.
        """
        secret = secret or secrets.token_bytes(KEY_BYTES)
        self._key = hmac.digest(secret, b"session", "sha256")

    def make(self, session_id: str) -> str:
        """Return the token of a session: 64 hexadecimal digits. It must never be logged."""
        return hmac.digest(self._key, session_id.encode(), "sha256").hex()

    def is_proof(self, session_id: str, token: str) -> bool:
        """Return whether a token is the session's, in a time that says nothing about it."""
        return bool(token) and hmac.compare_digest(self.make(session_id), token)
