"""Argument parsing that both commands share: one clear line for an error, exit code 2."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rallypoint.cli.torchrun import TORCHRUN_FLAGS
from rallypoint.cli.variables import find_variable, switch
from rallypoint.cli.words import BadWord, read_line

USAGE_EXIT_CODE = 2
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("auto", "console", "json")
_HOST = re.compile(r"[\w.-]+|\[[0-9a-fA-F:.]+(%[\w.-]+)?\]")
"""A name, an IPv4 address, or an IPv6 address in brackets, perhaps with a zone."""


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line and takes no abbreviated flags."""

    def __init__(self, **options: Any) -> None:
        """Take argparse's options; abbreviations would change meaning with every new flag."""
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and what to do, and exit with 2."""
        fail(self.prog, f"{message} (see {self.prog} --help)")

    def read(self, argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
        """Parse flags as torchrun takes them, then variables for those that were not given.

        Returns:
            The values by name. `given` among them maps the names of those that were given to how:
            by which flag or variable, for a person.
        """
        try:
            line = read_line(argv, self._option_string_actions, TORCHRUN_FLAGS)
        except BadWord as bad:
            self.error(str(bad))
        program = ["--", *line.program] if line.program else []
        args = self.parse_args([*(given.word() for given in line.flags), *program])
        args.given = {given.flag.dest: given.name() for given in line.flags}
        for flag in self._actions:
            is_open = flag.option_strings and flag.default is not argparse.SUPPRESS
            if is_open and flag.dest not in args.given:
                self._read_variable(flag, environment, args)
        return args

    def _read_variable(
        self, flag: argparse.Action, environment: Mapping[str, str], args: argparse.Namespace
    ) -> None:
        variable = find_variable(flag, environment)
        if variable is None:
            return
        name, text = variable
        value: object
        try:
            if flag.nargs == 0:
                value = flag.const if switch(text) else flag.default
            elif isinstance(flag, argparse._AppendAction):
                value = [self._get_values(flag, [part]) for part in text.split(",") if part]
            else:
                value = self._get_values(flag, [text])
        except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
            fail(self.prog, f"{name}: {getattr(error, 'message', error)}")
        setattr(args, flag.dest, value)
        args.given[flag.dest] = name


def how_given(args: argparse.Namespace, dest: str) -> str:
    """Return the flag or variable that a value came from; the flag if it was not given at all."""
    return str(args.given.get(dest, f"--{dest.replace('_', '-')}"))


def fail(prog: str, message: str) -> NoReturn:
    """Print one line and exit with 2."""
    print(f"{prog}: error: {message}", file=sys.stderr)
    sys.exit(USAGE_EXIT_CODE)


class _ShowVersion(argparse.Action):
    """Prints the version; looking it up is slow, so it is only looked up when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import version

        print(f"{parser.prog} (rallypoint) {version('rallypoint')}")
        sys.exit(0)


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Add --version, --log-level and --log-format."""
    nothing = argparse.SUPPRESS  # it sets no value, so no variable can
    parser.add_argument(
        "--version",
        action=_ShowVersion,
        nargs=0,
        dest=nothing,
        default=nothing,
        help="show the version",
    )
    parser.add_argument(
        "--log-level", choices=LOG_LEVELS, default="info", help="what is logged (default: info)"
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="auto",
        help="auto: console on a terminal, JSON lines elsewhere (default)",
    )


def plain(text: str) -> str:
    """Take a word that others can be told: not one of bytes that mean nothing."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8") from None
    return text


def positive_int(text: str) -> int:
    """Parse a whole number of 1 or more."""
    number = _whole(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not 1 or more")
    return number


def natural_int(text: str) -> int:
    """Parse a whole number of 0 or more."""
    number = _whole(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or more")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def seconds_ms(text: str) -> int:
    """Parse seconds, 0 or more with a fraction, into milliseconds."""
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= seconds <= 30 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 s and 30 days")
    return round(seconds * 1000)


def exit_codes(text: str) -> tuple[int, ...]:
    """Parse exit codes of workers, separated by commas, each 1 to 255."""
    codes = [natural_int(part) for part in text.split(",") if part.strip()]
    if not all(1 <= code <= 255 for code in codes):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of exit codes (1 to 255)")
    return tuple(sorted(set(codes)))


def signal_number(text: str) -> int:
    """Parse the name or number of a signal that a program can catch."""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    found = signal.Signals.__members__.get(name)
    if found is None and text.isdecimal() and int(text) in set(signal.Signals):
        found = signal.Signals(int(text))
    if found is None or found in (signal.SIGKILL, signal.SIGSTOP):
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal that a program can catch")
    return int(found)


def port_number(text: str) -> int:
    """Parse a port, 0 for any free one."""
    number = natural_int(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return number


def node_range(text: str) -> tuple[int, int]:
    """Parse `N` or `MIN:MAX`."""
    low, colon, high = text.partition(":")
    try:
        minimum = int(low)
        maximum = int(high) if colon else minimum
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not N or MIN:MAX") from None
    if not 1 <= minimum <= maximum:
        raise argparse.ArgumentTypeError(f"{text!r} does not satisfy 1 <= MIN <= MAX")
    return minimum, maximum


def endpoint(text: str, default_port: int = 50_051) -> str:
    """Parse `host[:port]`, with brackets around an IPv6 address that has a port."""
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port or (":" in host and not host.startswith("[")):
        host, port = text, str(default_port)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return f"{host}:{port}"


def label(text: str) -> tuple[str, str]:
    """Parse `key=value`."""
    key, equals, value = plain(text).partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
