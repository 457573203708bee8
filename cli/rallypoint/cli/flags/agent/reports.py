"""Logs and events of the agent, and their formats."""

from __future__ import annotations

from rallypoint.cli.flags.common import LOG_FORMAT, LOG_LEVEL
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail

OWN_HANDLERS = ("null", "console", "dynamic_rendezvous")
"""torchrun's handlers. The last one records nothing unless a plug-in has its name."""

GROUPS = (
    Group(
        "Logs and events",
        (
            LOG_LEVEL,
            LOG_FORMAT,
            Flag(
                names=("--event-log-handler",),
                parse=str,
                metavar="NAME",
                default="null",
                default_text="null",
                help="receiver of torchrun's events: console (standard error, JSON lines), or a "
                "plug-in",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject a handler of events that is not installed."""
    name = args.event_log_handler
    if name in OWN_HANDLERS:
        return
    from rallypoint.elastic.events import list_handlers  # few command lines need it

    known = list_handlers()
    if name not in known:
        fail(args.prog, f"--event-log-handler {name}: not installed; known: {', '.join(known)}")
