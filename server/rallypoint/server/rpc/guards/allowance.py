"""What may be used now of something that grows again with time, up to a limit."""

from __future__ import annotations

import math

from msgspec import Struct


class Allowance(Struct):
    """It begins full."""

    left: float = math.inf
    """Below 0: how much more was used."""
    counted_s: float = 0.0
    """When `left` was right."""

    def count(self, now_s: float, per_s: float, most: float) -> float:
        """Let it grow until now; return how much may be used."""
        self.left = min(most, self.left + (now_s - self.counted_s) * per_s)
        self.counted_s = now_s
        return self.left
