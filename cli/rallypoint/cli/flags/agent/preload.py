"""What the forkserver of a node imports, so that its workers need not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.preload.names import AUTO, parse_calls, parse_modules
from rallypoint.cli.flags.flag import BadValue, Flag, Group, Values
from rallypoint.cli.flags.parser import fail

if TYPE_CHECKING:
    from rallypoint.agent.preload.command import Preload


def modules(value: str) -> tuple[str, ...]:
    """Parse names of modules with commas in between, or `auto`."""
    return _parse(parse_modules, value)


def calls(value: str) -> tuple[str, ...]:
    """Parse functions with commas in between, each as `pkg.mod:function`."""
    return _parse(parse_calls, value)


def _parse(parse: Callable[[str], tuple[str, ...]], value: str) -> tuple[str, ...]:
    try:
        return parse(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


GROUPS = (
    Group(
        "Preloading",
        (
            Flag(
                names=("--preload",),
                parse=modules,
                metavar="NAMES",
                default=(),
                default_text="off",
                help="modules that one process of this node imports, from which all workers are "
                "forked: torch,numpy; auto: what workers import",
            ),
            Flag(
                names=("--preload-call",),
                parse=calls,
                metavar="NAMES",
                default=(),
                default_text="none",
                help="functions that this process then calls, as pkg.mod:function; none may start "
                "a thread or open a device or a socket",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject preloading where there is nothing to preload."""
    if args.no_python and (args.preload or args.preload_call):
        flag = "preload" if args.preload else "preload_call"
        fail(args.prog, f"{args.source(flag)}: only Python imports modules; leave out --no-python")


def preload(args: Values) -> Preload | None:
    """Return what is preloaded; None: nothing."""
    if not (args.preload or args.preload_call):
        return None
    from rallypoint.agent.preload.command import Preload

    is_auto = args.preload == (AUTO,)
    names = () if is_auto else args.preload
    return Preload(modules=names, calls=args.preload_call, is_auto=is_auto)
