"""Random envelopes that are almost valid: changed bytes, and changed fields.

Changed bytes test what decodes a message, changed fields what checks and handles it. The same seed
gives the same envelopes.
"""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from support.contract.boundaries import Change, changes

BYTES_MAX = 64 * 1_024
"""Longest envelope; longer ones are left to the boundary tests, because they take time."""
CHANGES_MAX = 3
"""Most changes of one envelope."""
ATTEMPTS_MAX = 20
"""Draws of a change until one fits."""
BYTES_PERCENT = 30
"""Share of the envelopes whose bytes are changed."""
EDGES = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


class Mutator:
    """Mutates envelopes like one sample."""

    def __init__(self, sample: agent_pb2.SessionRequest) -> None:
        """Prepare the changes of its fields, but for those that make lists very long."""
        named = changes(sample)
        self._changes: list[Change] = [one for name, one in named if not name.endswith(" more")]

    def mutate(self, rng: Random, envelope: agent_pb2.SessionRequest) -> bytes:
        """Return a mutated copy of an envelope, encoded."""
        if rng.randrange(100) < BYTES_PERCENT:
            return _change_bytes(rng, envelope.SerializeToString())
        mutated = copy.deepcopy(envelope)
        for _ in range(rng.randint(1, CHANGES_MAX)):
            mutated = self._change_field(rng, mutated)
        return mutated.SerializeToString()

    def _change_field(self, rng: Random, envelope: Any) -> Any:
        for _ in range(ATTEMPTS_MAX):
            changed = copy.deepcopy(envelope)
            try:
                rng.choice(self._changes)(changed)
            except (IndexError, ValueError):
                continue  # an earlier change has removed what it is about
            if changed.ByteSize() <= BYTES_MAX:
                return changed
        return envelope


def _change_bytes(rng: Random, raw: bytes) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randint(1, CHANGES_MAX)):
        place, length = rng.randrange(len(changed) + 1), rng.randint(1, 16)
        match rng.randrange(6):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.choice(EDGES)
            case 2:
                del changed[place : place + length]
            case 3:
                changed[place:place] = changed[place : place + length]
            case 4:
                changed[place:place] = rng.randbytes(length)
            case _:
                del changed[place:]
    return bytes(changed)
