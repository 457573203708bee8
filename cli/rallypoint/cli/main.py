"""Entry points. Each imports only what the chosen command needs, and none before `isolate`."""

from __future__ import annotations

import gc
import sys

from rallypoint.base.interpreter import isolate

TYPE_CHECKING = False  # mypy knows the name; PYTHONPATH may have another `typing`
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

GARBAGE_MIN = 100_000
"""Allocations after which a command that reads looks for garbage: most end before (Python: 700)."""
COMPLETE = "__complete"
"""The command that the scripts of `rallypoint completion` call."""


def rallypoint() -> NoReturn:
    """Run the `rallypoint` command."""
    _prepare()
    from rallypoint.cli.commands.overview import MENU

    argv = sys.argv[1:]
    if argv[:1] == [COMPLETE]:
        _complete(argv[1:], MENU.commands)
    name, words = MENU.choose(_move_options(argv) if argv[:1] and argv[0][:1] == "-" else argv)
    if name in COMMANDS:
        COMMANDS[name](f"rallypoint {name}", words)
    _operate(name, words)


def coordinator() -> NoReturn:
    """Run the `coordinator` command."""
    _prepare()
    _coordinator("coordinator", sys.argv[1:])


def node_agent() -> NoReturn:
    """Run the `node-agent` command."""
    _prepare()
    _agent("node-agent", sys.argv[1:])


def _coordinator(prog: str, argv: Sequence[str]) -> NoReturn:
    from rallypoint.cli.commands.coordinator import main

    sys.exit(main(prog, argv))


def _agent(prog: str, argv: Sequence[str]) -> NoReturn:
    # Almost nothing that imports make is garbage. Looking for it would take a tenth of the time to
    # the first worker. The session turns the collector on again.
    gc.disable()
    from rallypoint.cli.commands.agent.command import main

    main(prog, argv)


def _journal(prog: str, argv: Sequence[str]) -> NoReturn:
    from rallypoint.cli.commands.journal.command import main

    sys.exit(main(prog, argv))


def _relay(prog: str, argv: Sequence[str]) -> NoReturn:
    from rallypoint.cli.commands.relay import main

    sys.exit(main(prog, argv))


def _operate(name: str, words: Sequence[str]) -> NoReturn:
    gc.set_threshold(GARBAGE_MIN)  # see `_agent`
    from rallypoint.cli.operator.app import main

    sys.exit(main(name, words))


def _complete(words: Sequence[str], menu: Mapping[str, str]) -> NoReturn:
    from rallypoint.cli.operator.candidates import main

    sys.exit(main(words, menu))


def _move_options(argv: Sequence[str]) -> Sequence[str]:
    """Return a command line whose options of every operator's command follow the command."""
    from rallypoint.cli.operator.table import COMMANDS as OPERATOR_COMMANDS

    if not OPERATOR_COMMANDS.keys() & {*argv}:
        return argv  # nothing slow is imported for --help, or to start a process
    from rallypoint.cli.operator.options import split_options

    options, rest = split_options(argv)
    if not rest or rest[0] not in OPERATOR_COMMANDS:
        return argv
    at = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:at], *options, *rest[at:]]


COMMANDS: dict[str, Callable[[str, Sequence[str]], NoReturn]] = {
    "agent": _agent,
    "coordinator": _coordinator,
    "journal": _journal,
    "relay": _relay,
}
"""The function of each command that is a process of Rallypoint itself. It takes the command's name
and arguments. The others are the operator's: see `rallypoint.cli.operator.table`."""


def _prepare() -> None:
    """Prepare the process, before anything slow is imported."""
    isolate()
    import signal

    from rallypoint.cli.streams import make_streams_tolerant

    make_streams_tolerant()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the event loop handles signals, Ctrl-C simply ends the process, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    rallypoint()
