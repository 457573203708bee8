"""Entry points. Each parses its flags first and imports the rest only when they are right."""

from __future__ import annotations

import sys


def coordinator() -> None:
    """Run the `coordinator` command."""
    from rallypoint.cli.commands.coordinator import main

    sys.exit(main(sys.argv[1:]))


def node_agent() -> None:
    """Run the `node-agent` command."""
    from rallypoint.cli.commands.node_agent import main

    sys.exit(main(sys.argv[1:]))
