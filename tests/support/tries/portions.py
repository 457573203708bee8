"""How much of its whole a soak does: a part in each run of the long tests, all of it on request.

`make test-long WHOLE=1` does all. What is cut down so is more of the same: seeds, combinations.
What no other test shows stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

WHOLE = "WHOLE"
"""The variable that asks for all, when it is set and not empty."""


def choose_portion(whole: int, part: int, env: Mapping[str, str] = os.environ) -> int:
    """Return how many there are of something: `part`, or `whole` on request."""
    assert 0 < part <= whole
    return whole if env.get(WHOLE) else part
