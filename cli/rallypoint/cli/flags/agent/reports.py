"""Logs and events of the agent, and their formats."""

from __future__ import annotations

from rallypoint.cli.flags.common import LOG_FORMAT, LOG_LEVEL
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.values import one_of

EVENT_LOG_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""torchrun's handlers. The last one records nothing with torchrun either."""

GROUPS = (
    Group(
        "Logs and events",
        (
            LOG_LEVEL,
            LOG_FORMAT,
            Flag(
                names=("--event-log-handler",),
                parse=one_of(*EVENT_LOG_HANDLERS),
                metavar="NAME",
                default="null",
                default_text="null",
                help="console: write torchrun's events to standard error, as JSON lines",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject nothing: the values are checked one by one."""
