"""What the forkserver of a node imports, so that its workers need not."""

from __future__ import annotations

from rallypoint.cli.flags.agent.job import option_flag
from rallypoint.cli.flags.flag import Group, Values
from rallypoint.cli.flags.parser import fail

GROUPS = (Group("Preloading", (option_flag("preload"), option_flag("preload_call"))),)


def check(args: Values) -> None:
    """Reject preloading where there is nothing to preload."""
    if args.no_python and (args.preload or args.preload_call):
        flag = "preload" if args.preload else "preload_call"
        fail(args.prog, f"{args.source(flag)}: only Python imports modules; leave out --no-python")
