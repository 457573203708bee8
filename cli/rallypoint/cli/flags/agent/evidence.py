"""How workers show what they do."""

from __future__ import annotations

from rallypoint.cli.flags.agent.job import option_flag
from rallypoint.cli.flags.flag import Group, Values

GROUPS = (Group("Evidence", (option_flag("evidence"),)),)


def check(args: Values) -> None:
    """Accept every value that was parsed."""
