"""Reads a command's flags and variables. An error is one clear line and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.log import to_json_line
from rallypoint.base.values import BadValue, truth
from rallypoint.cli.flags.argv import BadArgument, CommandLine, Given, split_argv
from rallypoint.cli.flags.flag import Flag, Usage, Values
from rallypoint.cli.flags.torchrun_names import TORCHRUN_FLAGS
from rallypoint.cli.flags.variables import find_variable

_is_json = False
"""Errors of this command are lines of JSON: it was started with --log-format json."""


class Parser(Usage, frozen=True):
    """The flags of a command, and how they are read."""

    def read(self, argv: Sequence[str], environment: Mapping[str, str]) -> Values:
        """Parse flags as torchrun does, then the variables of flags that were not given.

        Prints and exits instead for --help and --version, and for an error.
        """
        global _is_json
        known = self.known()
        _is_json = "--log-format" in known and _asks_for_json(argv, environment)
        try:
            line = self.split(argv)
        except BadArgument as bad:
            self._fail_usage(str(bad))
        for given in line.flags:
            if given.flag.prints:
                self._print(given.flag)
        values = Values(prog=self.prog, given={}, script="", args=[])
        for flag in self.flags():
            setattr(values, flag.dest, flag.unset())
        for given in line.flags:
            self._set(given, values)
        for flag in self.flags():
            if flag.dest not in values.given:
                self._set_from_variable(flag, environment, values)
        if self.operands:
            self._set_operands(line.program, values)
        else:
            self._set_program(line.program, values)
        _is_json = "--log-format" in known and values.log_format == "json"
        return values

    def known(self) -> dict[str, Flag]:
        """Return every flag by each of its names."""
        return {name: flag for flag in self.flags() for name in flag.names}

    def split(self, argv: Sequence[str]) -> CommandLine:
        """Split a command line; flags may follow operands, but no program.

        Raises:
            BadArgument: for the first invalid word.
        """
        known = self.known()
        if not self.operands:
            return split_argv(argv, known, TORCHRUN_FLAGS)
        end = argv.index("--") if "--" in argv else len(argv)
        flags, operands = list[Given](), list[str]()
        rest = list(argv[:end])
        while rest:
            line = split_argv(rest, known, ())
            flags += line.flags
            operands += line.program[:1]
            rest = list(line.program[1:])
        return CommandLine(tuple(flags), (*operands, *argv[end + 1 :]))

    def _set(self, given: Given, values: Values) -> None:
        flag = given.flag
        value: Any = True
        if flag.parse is not None and given.value is not None:
            try:
                value = flag.parse(given.value)
            except BadValue as bad:
                self._fail_usage(f"{flag.name}: {bad}")
        if flag.is_repeatable:
            getattr(values, flag.dest).append(value)
        else:
            setattr(values, flag.dest, value)
        values.given[flag.dest] = flag.name

    def _set_from_variable(
        self, flag: Flag, environment: Mapping[str, str], values: Values
    ) -> None:
        variable = find_variable(flag, environment, shared_only=not self.takes_program)
        if variable is None:
            return
        name, text = variable
        parse = flag.parse or truth
        try:
            parts = [part for part in text.split(",") if part] if flag.is_repeatable else [text]
            parsed = [parse(part) for part in parts]
        except BadValue as bad:
            fail(self.prog, f"{name}: {bad}")
        setattr(values, flag.dest, parsed if flag.is_repeatable else parsed[0])
        values.given[flag.dest] = name

    def _set_operands(self, words: Sequence[str], values: Values) -> None:
        left = list(words)
        for operand in self.operands:
            if not left and not operand.is_optional:
                self._fail_usage(f"no {operand.name} given")
            taken = left if operand.is_repeatable else left[:1]
            left = left[len(taken) :]
            try:
                found = [operand.parse(word) for word in taken]
            except BadValue as bad:
                self._fail_usage(f"{operand.name}: {bad}")
            one = found if operand.is_repeatable else next(iter(found), operand.default)
            setattr(values, operand.dest, one)
        if left:
            self._fail_usage(f"unexpected argument {left[0]!r}")

    def _set_program(self, words: Sequence[str], values: Values) -> None:
        if self.takes_program and not words:
            self._fail_usage("no script given")
        if words and not self.takes_program:
            self._fail_usage(f"unexpected argument {words[0]!r}")
        if words:
            values.script, values.args = words[0], list(words[1:])

    def _fail_usage(self, message: str) -> NoReturn:
        fail(self.prog, f"{message} (see {self.prog} --help)")

    def _print(self, flag: Flag) -> NoReturn:
        """Print the version or a help text, and exit. Its imports are slow, so they are local."""
        if flag.name == "--version":
            from importlib.metadata import version

            print(f"{self.prog} (rallypoint) {version('rallypoint')}")
        else:
            from rallypoint.cli.flags.help import format_help, terminal_width

            print(format_help(self, terminal_width(), is_whole=flag.name == "--help-all"))
        sys.exit(0)


def _asks_for_json(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Guess it for a command line that may be wrong; words of a script may look the same."""
    words = " ".join(argv).replace("=", " ").replace("--log_format", "--log-format")
    variables = (environment.get("PET_LOG_FORMAT"), environment.get("RALLYPOINT_LOG_FORMAT"))
    return "--log-format json" in words or "json" in variables


def fail(prog: str, message: str) -> NoReturn:
    """Print one line and exit with 2."""
    show_error(prog, message)
    sys.exit(EXIT_USAGE)


def show_error(prog: str, message: str) -> None:
    """Print why a command ends: one line, in JSON if its log is."""
    line = f"{prog}: error: {message}"
    if _is_json:
        line = to_json_line("error", "command_failed", command=prog, why=message)
    print(line, file=sys.stderr, flush=True)
