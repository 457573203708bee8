"""Arguments and options that several changes share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from rallypoint.cli.operator.common import TIMEOUT_S_MAX
from rallypoint.cli.operator.options import option

WAIT_S = 60.0
"""Workers have 30 s to stop unless the job says otherwise, and the next round takes seconds."""

Reason = Annotated[
    str, option("--reason", "-r", metavar="TEXT", help="reason to record, for people")
]
IsWaiting = Annotated[bool, option("--wait", help="return only when it has taken effect")]


def _limit(default: str) -> Any:
    return option(
        "--wait-timeout",
        metavar="SECONDS",
        min=0.0,
        max=TIMEOUT_S_MAX,
        help=f"longest wait, after which the exit code is 4 (without it: {default})",
    )


WaitLimit = Annotated[float | None, _limit(f"{WAIT_S:g}")]
DrainWaitLimit = Annotated[float | None, _limit(f"{WAIT_S:g} more than --drain-timeout")]


class Wait(Struct, frozen=True):
    """What a command line says about waiting."""

    is_wanted: bool
    limit_s: float


def read_wait(*, is_waiting: bool, limit_s: float | None, default_s: float = WAIT_S) -> Wait:
    """Return what the options say; a limit says that waiting is wanted."""
    return Wait(is_waiting or limit_s is not None, default_s if limit_s is None else limit_s)
