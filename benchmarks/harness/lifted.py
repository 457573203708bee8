"""A coordinator without limits per host: what its limits would refuse can then be measured.

The audience of this benchmark is on one host. On a real network it would be on many.
"""

from __future__ import annotations

import sys

from rallypoint.cli.main import coordinator
from rallypoint.server.contract import limits

MANY = 1_000_000

if __name__ == "__main__":
    limits.WATCHERS_PER_JOB_MAX = limits.WATCHERS_PER_HOST_MAX = MANY
    limits.STREAMS_PER_HOST_MAX = limits.SESSIONS_AT_ONCE_MAX = limits.JOBS_PER_HOST_MAX = MANY
    limits.NEW_RUNS_AT_ONCE_MAX = MANY
    sys.exit(coordinator())
