"""How an operator's command is found, and how it ends. Only the chosen one is loaded."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from rallypoint.base.printable import to_printable_line
from rallypoint.cli.flags.menu import Menu
from rallypoint.cli.operator.failures import EXIT_INTERRUPTED, CommandFailed, exit_code_of
from rallypoint.cli.operator.options import Command
from rallypoint.cli.operator.table import COMMANDS
from rallypoint.client.errors import RallypointError

PACKAGE = "rallypoint.cli.operator"
PROG = "rallypoint"


def find(name: str) -> Command | Mapping[str, Command]:
    """Return a command, or those of a group, by the next word."""
    module: Any = import_module(f"{PACKAGE}.{COMMANDS[name][1]}")
    groups: Mapping[str, Mapping[str, Command]] = getattr(module, "GROUPS", {})
    return groups.get(name) or getattr(module, name)


def main(name: str, words: Sequence[str]) -> int:
    """Run a command, and return the exit code."""
    wanted: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,  # a command cleans up its view
        signal.SIGPIPE: signal.SIG_DFL,  # `| head`: what follows for ever has to end
    }
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        return _run(name, words)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(name: str, words: Sequence[str]) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core would write its own lines
    prog, found = f"{PROG} {name}", find(name)
    try:
        if not isinstance(found, Command):
            part, words = _menu(name, found).choose(words)
            prog, found = f"{prog} {part}", found[part]
        return found.run(prog, words)
    except CommandFailed as error:
        return _report(prog, str(error), error.code)
    except RallypointError as error:
        return _report(prog, str(error), exit_code_of(error))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as end:  # after --help, or a wrong command line
        return int(end.code or 0)


def _menu(name: str, group: Mapping[str, Command]) -> Menu:
    line = COMMANDS[name][0]
    return Menu(
        prog=f"{PROG} {name}",
        summary=f"{line[0].upper()}{line[1:]}.",
        commands={part: f"{one.line[0].lower()}{one.line[1:]}" for part, one in group.items()},
    )


def _report(prog: str, text: str, code: int) -> int:
    with suppress(OSError):
        sys.stdout.flush()
    line = to_printable_line(text)  # a coordinator may have written it, or one that poses as it
    print(f"{prog}: error: {line}", file=sys.stderr, flush=True)
    return code
