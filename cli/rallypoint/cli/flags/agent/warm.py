"""What workers import before they are needed: the interpreters that wait for the next round."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rallypoint.agent.warm.names import AUTO, parse_calls, parse_modules
from rallypoint.cli.flags.flag import BadValue, Flag, Group, Values
from rallypoint.cli.flags.parser import fail

if TYPE_CHECKING:
    from rallypoint.agent.warm.command import Warmth

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
BYTES_MAX = 1 << 50


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


def size(value: str) -> int:
    """Parse a number of bytes, perhaps with a unit: 512M, 4GiB."""
    text = value.strip().lower().removesuffix("ib").removesuffix("b")
    unit = text[-1:] if text[-1:] in _UNITS else ""
    digits = text.removesuffix(unit).strip()
    if not digits.isascii() or not digits.isdecimal():
        raise BadValue(f"{value!r} is not a size such as 512M or 4GiB")
    number = int(digits) * _UNITS[unit]
    if not 0 < number <= BYTES_MAX:
        raise BadValue(f"{value!r} is not between 1 byte and 1024 TiB")
    return number


GROUPS = (
    Group(
        "Warm workers",
        (
            Flag(
                names=("--warm",),
                parse=modules,
                metavar="NAMES",
                default=(),
                default_text="off",
                help="modules that interpreters import in advance, for the next round: "
                "torch,numpy; auto: what workers import",
            ),
            Flag(
                names=("--warm-call",),
                parse=calls,
                metavar="NAMES",
                default=(),
                default_text="none",
                help="functions that these interpreters then call, as pkg.mod:function; none may "
                "open a device or a socket",
            ),
            Flag(
                names=("--warm-memory",),
                parse=size,
                metavar="SIZE",
                default_text="a tenth of the memory",
                help="memory that these interpreters may use together, such as 4GiB",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject warm workers that cannot be, and options of those that were not asked for."""
    is_wanted = bool(args.warm or args.warm_call)
    if args.no_python and is_wanted:
        flag = "warm" if args.warm else "warm_call"
        fail(args.prog, f"{args.source(flag)}: only Python imports modules; leave out --no-python")
    if args.warm_memory is not None and not is_wanted:
        fail(args.prog, f"{args.source('warm_memory')}: needs --warm or --warm-call")


def warmth(args: Values) -> Warmth | None:
    """Return what is kept warm; None: nothing."""
    if not (args.warm or args.warm_call):
        return None
    from rallypoint.agent.warm.command import Warmth

    is_auto = args.warm == (AUTO,)
    return Warmth(
        modules=() if is_auto else args.warm,
        calls=args.warm_call,
        is_auto=is_auto,
        memory_bytes=args.warm_memory,
    )
