"""Additions as torch's stores make them, where the coordinator is stricter.

torch reads a number as C++ does: spaces before it, a sign, zeros, and whatever follows the digits.
An empty value counts as 0.
"""

from __future__ import annotations

import re

from rallypoint.torch.store.space import Space

AMOUNT_MAX = 2**53 - 1
"""Most that the contract lets a call add."""
NUMBER_MIN, NUMBER_MAX = -(2**63), 2**63 - 1
"""What fits into 64 bits."""
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")


def add_as_torch(space: Space, name: str, amount: int, limit_s: float) -> int:
    """Add to the number that a key holds; return the sum.

    Raises:
        ValueError: when it holds no number, or the sum has more than 64 bits.
        TypeError: when the amount has more than 64 bits.
        RallypointError: when it fails otherwise.
    """
    if not NUMBER_MIN <= amount <= NUMBER_MAX:
        raise TypeError(f"{amount} does not fit into 64 bits")
    total = 0

    def decide(held: bytes | None) -> bytes:
        nonlocal total
        total = amount + _read(held)
        if not NUMBER_MIN <= total <= NUMBER_MAX:
            raise ValueError(f"the sum {total} does not fit into 64 bits")
        return b"%d" % total

    space.change(name, decide, limit_s)
    return total


def _read(held: bytes | None) -> int:
    if not held:
        return 0
    found = _NUMBER.match(held)
    if found is None:
        raise ValueError(f"the key holds no number: {held[:32]!r}")
    return int(found[1])
