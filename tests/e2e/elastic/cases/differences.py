"""Where our API differs from torch's on purpose: the one table, with a reason for each.

A test fails for a difference that is missing here, and for one here that does not show any more.
docs/python.md lists the reasons for users.
"""

from __future__ import annotations

from support.elastic.compare import Difference

DIFFERENCES: tuple[Difference, ...] = ()
