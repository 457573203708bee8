"""The flags that every command has."""

from __future__ import annotations

from rallypoint.cli.flags.flag import Flag, Group
from rallypoint.cli.flags.values import one_of

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")

LOG_LEVEL = Flag(
    names=("--log-level",),
    parse=one_of(*LOG_LEVELS),
    metavar="LEVEL",
    default="info",
    default_text="info",
    help=f"least severe events to log: {', '.join(LOG_LEVELS)}",
)
LOG_FORMAT = Flag(
    names=("--log-format",),
    parse=one_of(*LOG_FORMATS),
    metavar="FORMAT",
    default="text",
    default_text="text",
    help="text: aligned lines; json: one JSON object per line",
)
HELP = Flag(names=("-h", "--help"), prints=True, help="show the basic flags and examples")
HELP_ALL = Flag(names=("--help-all",), prints=True, help="show every flag")
VERSION = Flag(names=("--version",), prints=True, help="show the version")

LOGS = Group("Logs", (LOG_LEVEL, LOG_FORMAT))
HELP_GROUP = Group("Help", (HELP, HELP_ALL, VERSION))
"""For a command with basic flags."""
ONE_HELP_GROUP = Group(
    "Help",
    (
        Flag(names=("-h", "--help"), prints=True, help="show every flag and examples"),
        Flag(names=("--help-all",), prints=True, help="the same"),
        VERSION,
    ),
)
"""For a command with few flags."""
