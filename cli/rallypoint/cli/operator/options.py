"""The options that every command of an operator has, and how a function becomes such a command.

They may stand before the command, too: `rallypoint -c head:50051 jobs`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from msgspec import Struct

from rallypoint.base.limits import COUNT_MAX
from rallypoint.base.values import text
from rallypoint.cli.flags.common import VERSION
from rallypoint.cli.flags.flag import Flag, Group, Operand
from rallypoint.cli.flags.parser import Parser, fail
from rallypoint.cli.flags.values import member_of, within
from rallypoint.cli.operator.common import TIMEOUT_S, TIMEOUT_S_MAX, TIMEOUT_S_MIN, Common, Format
from rallypoint.cli.operator.failures import CommandFailed, exit_code_of
from rallypoint.cli.operator.hints import reaching_as
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import RallypointError


class Spec(Struct, frozen=True):
    """What an annotation says about an option or a word; its type says how to read it."""

    names: tuple[str, ...]
    """Of an option, with dashes; empty: it is a word."""
    help: str
    metavar: str
    low: float
    high: float
    among: tuple[Enum, ...] = ()
    """Members of the type that are allowed; empty: all."""


def option(
    *names: str,
    help: str,
    metavar: str = "",
    min: float = -COUNT_MAX,
    max: float = COUNT_MAX,
    among: tuple[Enum, ...] = (),
) -> Spec:
    """Return an option of a command; without a placeholder it is a switch."""
    return Spec(tuple(sorted(names, key=len)), help, metavar, min, max, among)


def argument(metavar: str, help: str, min: float = -COUNT_MAX) -> Spec:
    """Return a word of a command."""
    return Spec((), help, metavar, min, COUNT_MAX)


Job = Annotated[str, argument("JOB", "name of the job")]
"""The job that a command is about."""


def _common(name: str, help: str, metavar: str = "", **more: Any) -> Flag:
    """Return an option that a variable of the same name sets, too."""
    help = f"{help} [variable: RALLYPOINT_{name.upper().replace('-', '_')}]"
    parse, default = (text, "") if metavar else (None, False)
    names = (*more.get("names", ()), f"--{name}")
    return Flag(names=names, help=help, metavar=metavar, parse=parse, default=default)


COMMON = Group(
    "Flags of every command",
    (
        _common(
            "coordinator",
            "coordinator to ask, or several that share a store",
            "HOST[:PORT],...",
            names=("-c",),
        ),
        _common("context", "saved context to use instead of the current one", "NAME"),
        Flag(
            names=("-o", "--output"),
            help="table for people, json for programs",
            metavar="table|json",
            parse=member_of(Format),
            default=Format.TABLE,
            default_text=Format.TABLE.value,
        ),
        Flag(
            names=("--timeout",),
            help="how long a call may take",
            metavar="SECONDS",
            parse=within(TIMEOUT_S_MIN, TIMEOUT_S_MAX),
            default=TIMEOUT_S,
            default_text=f"{TIMEOUT_S:g}",
        ),
        _common("tls", "connect with TLS"),
        _common("tls-ca", "authorities that the coordinator's certificate must come from", "FILE"),
        _common("tls-cert", "certificate to show to the coordinator", "FILE"),
        _common("tls-key", "private key of that certificate", "FILE"),
        _common(
            "tls-server-name",
            "name to expect in the coordinator's certificate instead of its host",
            "NAME",
        ),
        _common("token-file", "file with the token for the coordinator", "FILE"),
    ),
)
HELP = Group("Help", (Flag(names=("-h", "--help"), prints=True, help="show this help"), VERSION))
_TAKE_VALUE = {name: not flag.is_switch for flag in COMMON.flags for name in flag.names}
"""Each name of these options, and whether it takes a value."""


class Command:
    """A function as a command: its parameters are its options and words."""

    def __init__(self, function: Callable[..., int | None]) -> None:
        """Read the signature.

        Args:
            function: each parameter has an `option` or an `argument` as annotation. If the first
                is an `Invocation`, it also has the options of every command. It returns an exit
                code; None: 0.
        """
        self._function = function
        parameters = inspect.signature(function, eval_str=True).parameters.values()
        self._asks = any(one.annotation is Invocation for one in parameters)
        read = {one.name: _read(one) for one in parameters if one.annotation is not Invocation}
        self._needed = [
            one.name
            for one in parameters
            if one.default is inspect.Parameter.empty and isinstance(read.get(one.name), Flag)
        ]
        self._dests = {name: one.dest for name, one in read.items()}
        self._flags = tuple(one for one in read.values() if isinstance(one, Flag))
        self._operands = tuple(one for one in read.values() if isinstance(one, Operand))

    @property
    def line(self) -> str:
        """Return what it does, as --help of its group says it."""
        return self._paragraphs[0].partition(". ")[0].rstrip(".")

    @property
    def _paragraphs(self) -> list[str]:
        return [" ".join(one.split()) for one in inspect.getdoc(self._function).split("\n\n")]  # type: ignore[union-attr]

    def parser(self, prog: str) -> Parser:
        """Return what reads its command line; `prog` is what a person types before that."""
        own = (Group("Flags", self._flags),) if self._flags else ()
        common = (COMMON,) if self._asks else ()
        return Parser(
            prog=prog,
            summary="\n\n".join(self._paragraphs),
            groups=(*own, *common, HELP),
            operands=self._operands,
        )

    def run(self, prog: str, words: Sequence[str]) -> int:
        """Run it, and return the exit code."""
        read = self.parser(prog).read(words, os.environ)
        values = {name: getattr(read, dest) for name, dest in self._dests.items()}
        for name in self._needed:
            if values[name] is None:
                fail(prog, f"no --{name} given (see {prog} --help)")
        if not self._asks:
            return self._function(**values) or 0
        given = {flag.dest: getattr(read, flag.dest) for flag in COMMON.flags}
        common = Common(timeout_s=given.pop("timeout"), **given)
        invocation = Invocation(common)
        with reaching_as(common):
            try:
                return self._function(invocation, **values) or 0
            except RallypointError as error:
                explained = invocation.explain(error, values.get("job", ""))
                raise CommandFailed(explained, exit_code_of(error)) from error
            finally:
                invocation.close()


def _read(parameter: inspect.Parameter) -> Flag | Operand:
    """Return the option or the word that a parameter describes."""
    kind, spec, default = (
        parameter.annotation.__origin__,
        parameter.annotation.__metadata__[0],
        parameter.default,
    )
    is_needed = default is inspect.Parameter.empty
    kinds = [one for one in get_args(kind) or (kind,) if one is not type(None)]
    repeated = next((one for one in (kind, *kinds) if get_origin(one) is list), None)
    is_repeatable, one = (
        repeated is not None,
        kinds[0] if repeated is None else get_args(repeated)[0],
    )
    parse = None if kind is bool else _choose_parser(one, spec)
    if not spec.names:
        return Operand(
            name=spec.metavar,
            help=spec.help,
            parse=parse or text,
            is_optional=not is_needed,
            is_repeatable=is_repeatable,
            default=None if is_needed else default,
        )
    shown = getattr(default, "value", default)
    if isinstance(shown, float):
        shown = f"{shown:g}"
    return Flag(
        names=spec.names,
        help=spec.help,
        metavar=spec.metavar,
        parse=parse,
        is_repeatable=is_repeatable,
        default=None if is_needed else default,
        default_text="" if is_needed or shown in (None, "", False, -1) else str(shown),
    )


def _choose_parser(kind: Any, spec: Spec) -> Callable[[str], Any]:
    """Return what reads a value of a type."""
    if kind in (int, float):
        return within(spec.low, spec.high, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return member_of(spec.among or kind)
    return Path if kind is Path else text


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options of every command with which a command line begins, and what follows."""
    words, moved = list(argv), list[str]()
    while words and (takes_value := _TAKE_VALUE.get(words[0].partition("=")[0])) is not None:
        size = 2 if takes_value and "=" not in words[0] else 1
        moved += words[:size]
        words = words[size:]
    return moved, words
