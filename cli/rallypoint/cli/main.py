"""Entry points. Each imports only what the chosen command needs."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from rallypoint.cli.streams import make_streams_tolerant


def rallypoint() -> NoReturn:
    """Run the `rallypoint` command."""
    _prepare()
    from rallypoint.cli.commands.overview import MENU

    name, words = MENU.choose(sys.argv[1:])
    COMMANDS[name](f"rallypoint {name}", words)


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


COMMANDS: dict[str, Callable[[str, Sequence[str]], NoReturn]] = {
    "agent": _agent,
    "coordinator": _coordinator,
    "journal": _journal,
}
"""The function of each command of `rallypoint`. It takes the command's name and arguments."""


def _prepare() -> None:
    """Prepare the process, before anything slow is imported."""
    make_streams_tolerant()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the event loop handles signals, Ctrl-C simply ends the process, without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    rallypoint()
