"""How all ranks come to the same answer whether to save a checkpoint now.

Each rank brings the notices that have led to no checkpoint yet, and the answer is yes if any rank
has one. So each notice leads to one checkpoint, although ranks find it at different moments.

A coordinator that starts again without its memory may have sent its last answer to some ranks only.
So every rank also brings the number of its call and the answer to the one before. Ranks that
missed an answer learn it from the others, which wait for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2s

from rallypoint.worker.notices import Notice

NOTICES_MAX = 4
"""Notices that a rank brings to one call; the others wait for the next."""
_HEAD = struct.Struct(">Q?")
"""Number of the call, and the answer to the one before."""
_DIGEST_BYTES = 4


class Agreement:
    """One rank's part in the answers of a round."""

    def __init__(self) -> None:
        """Begin before the first call."""
        self._call = 0
        self._last = False
        """The answer to the call before."""
        self._handled: set[bytes] = set()
        """The notices that have led to a checkpoint."""

    def propose(self, notices: Iterable[Notice]) -> bytes:
        """Return what this rank brings."""
        fresh = sorted({_digest(notice) for notice in notices} - self._handled)
        return _HEAD.pack(self._call, self._last) + b"".join(fresh[:NOTICES_MAX])

    def decide(self, proposals: Sequence[bytes]) -> bool | None:
        """Return the answer; None: wait for ranks that have missed the one before.

        Args:
            proposals: of every rank.
        """
        heads = [_HEAD.unpack_from(proposal) for proposal in proposals]
        if any(call != self._call for call, _ in heads):
            later = [last for call, last in heads if call > self._call]
            return self._answer(later[0]) if later else None
        found = {digest for proposal in proposals for digest in _split(proposal)}
        self._handled |= found
        return self._answer(bool(found))

    def _answer(self, answer: bool) -> bool:
        self._call += 1
        self._last = answer
        return answer


def _digest(notice: Notice) -> bytes:
    text = f"{notice.kind}\0{notice.node}"
    return blake2s(text.encode(), digest_size=_DIGEST_BYTES).digest()


def _split(proposal: bytes) -> Iterable[bytes]:
    for at in range(_HEAD.size, len(proposal), _DIGEST_BYTES):
        yield proposal[at : at + _DIGEST_BYTES]
