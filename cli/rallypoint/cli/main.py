"""Entry points. Each parses its flags first and imports the rest only when they are right."""

from __future__ import annotations

import signal
import sys

from rallypoint.cli.streams import make_streams_tolerant


def coordinator() -> None:
    """Run the `coordinator` command."""
    _begin()
    from rallypoint.cli.commands.coordinator import main

    sys.exit(main(sys.argv[1:]))


def node_agent() -> None:
    """Run the `node-agent` command."""
    _begin()
    from rallypoint.cli.commands.node_agent import main

    main(sys.argv[1:])


def _begin() -> None:
    """Prepare the process, before anything that takes time is imported."""
    make_streams_tolerant()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the event loop takes signals, Ctrl-C just ends the process: without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
