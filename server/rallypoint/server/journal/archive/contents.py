"""What a journal holds, whatever it is stored in."""

from __future__ import annotations

from msgspec import Struct


class Contents(Struct, frozen=True, kw_only=True):
    """A whole journal, as of one moment."""

    identity: str
    """Id of the coordinator that the journal belongs to: 32 hexadecimal digits."""
    secret: bytes
    """From which the coordinator derives its tokens: SECRET_BYTES bytes."""
    payloads: tuple[bytes, ...]
    """The batches as the store holds them, each a `rallypoint.journal.v1.Batch`; oldest first."""

    @property
    def size(self) -> int:
        """Bytes of the batches."""
        return sum(map(len, self.payloads))
