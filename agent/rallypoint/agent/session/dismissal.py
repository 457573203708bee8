"""The end of an agent that no coordinator will serve.

Apart from the other endings, because the keeper of a hosted coordinator raises it before gRPC is
imported.
"""

from __future__ import annotations


class Dismissed(Exception):
    """No coordinator will serve this agent: one refuses it for good, or none can listen."""

    def __init__(self, exit_code: int, text: str) -> None:
        """Keep the agent's exit code, and why, for people."""
        super().__init__(text)
        self.exit_code = exit_code
        self.text = text
