"""The tokens that resume sessions.

A token is a keyed digest of the session's id. The key cannot be guessed and belongs to the journal,
so no token has to be stored, and one is good as long as the session is known: also by a coordinator
that starts again.
"""

from __future__ import annotations

import hmac
import secrets

KEY_BYTES = 32


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
