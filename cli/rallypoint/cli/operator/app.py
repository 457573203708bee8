"""The Typer application of the operator's commands, and how a command ends.

`main` loads the chosen command alone; completion and the documentation load all of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import typer

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.printable import to_printable_line
from rallypoint.cli.operator.failures import (
    EXIT_INTERRUPTED,
    CommandFailed,
    exit_code_of,
)
from rallypoint.cli.operator.table import COMMANDS
from rallypoint.client.errors import RallypointError

PACKAGE = "rallypoint.cli.operator"
PROG = "rallypoint"
UsageError: Any = typer.BadParameter.__mro__[1]
"""What a wrong command line raises. Typer has no public name for it."""


def app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the application with the modules of these commands."""
    made = typer.Typer(
        name=PROG,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    for module in dict.fromkeys(COMMANDS[name][1] for name in names):
        import_module(f"{PACKAGE}.{module}").register(made)
    return made


def _root() -> None:
    """Look at jobs, and change them."""


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
    from typer.main import get_command

    group: Any = get_command(app([name]))
    prog = f"{PROG} {name}"
    if words and words[0] in getattr(group.commands[name], "commands", {}):
        prog = f"{prog} {words[0]}"
    try:
        code = group.main([name, *words], prog_name=PROG, standalone_mode=False)
    except UsageError as error:
        return _report(prog, _describe_usage(error, prog), EXIT_USAGE)
    except CommandFailed as error:
        return _report(prog, str(error), error.code)
    except RallypointError as error:
        return _report(prog, str(error), exit_code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0


def _describe_usage(error: Any, prog: str) -> str:
    text = str(error.format_message()).strip().rstrip(".")
    if text == "Missing command":
        text = f"no command given: {', '.join(error.ctx.command.commands)}"
    if near := getattr(error, "possibilities", None):
        text = f"no such option: {error.option_name}; did you mean {' or '.join(near)}?"
    return f"{text[:1].lower()}{text[1:]} (see {prog} --help)"


def _report(prog: str, text: str, code: int) -> int:
    with suppress(OSError):
        sys.stdout.flush()
    line = to_printable_line(text)  # a coordinator may have written it, or one that poses as it
    print(f"{prog}: error: {line}", file=sys.stderr, flush=True)
    return code
