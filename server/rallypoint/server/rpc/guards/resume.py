"""The tokens that resume sessions.

A token is a keyed digest of the session's id. The key is random and lives as long as the
coordinator's process, so tokens cannot be guessed, and none has to be stored. A coordinator that
starts again knows no sessions; its agents resume none and need no token.
"""

from __future__ import annotations

import hmac
import secrets

KEY_BYTES = 32


class ResumeTokens:
    """Makes and checks the tokens of one coordinator process."""

    def __init__(self) -> None:
        """Draw a key."""
        self._key = secrets.token_bytes(KEY_BYTES)

    def make(self, session_id: str) -> str:
        """Return the token of a session: 64 hexadecimal digits. It must never be logged."""
        return hmac.new(self._key, session_id.encode(), "sha256").hexdigest()

    def is_proof(self, session_id: str, token: str) -> bool:
        """Return whether a token is the session's, in a time that says nothing about it."""
        return bool(token) and hmac.compare_digest(self.make(session_id), token)
