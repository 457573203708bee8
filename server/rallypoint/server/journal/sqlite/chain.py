"""Digests that continue each other, so that no batch can be changed, lost or added unnoticed."""

from __future__ import annotations

import hashlib

from msgspec import Struct

DIGEST_BYTES = 32


class Link(Struct, frozen=True):
    """The place of a batch in the journal."""

    sequence: int
    """Number of the batch, counted from 1 since the journal was made; 0: before the first."""
    digest: bytes
    """Of the batch, of all before it, and of the journal's identity."""


def begin(label: bytes, *facts: bytes) -> bytes:
    """Return the digest that a chain begins with.

    Args:
        label: the kind of the chain; no two kinds have equal digests.
        facts: what else the chain is about.
    """
    digest = hashlib.sha256(label)
    for fact in facts:
        digest.update(len(fact).to_bytes(8, "big") + fact)
    return digest.digest()


def extend(digest: bytes, payload: bytes) -> bytes:
    """Return the digest of a chain with one more payload."""
    whole = hashlib.sha256(digest)
    whole.update(payload)
    return whole.digest()
