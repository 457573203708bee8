"""`python -m rallypoint.agent` is not the agent, but looks like it: say what to run instead."""

import sys

from rallypoint.base.exit_codes import EXIT_USAGE

if __name__ == "__main__":
    print(
        "rallypoint.agent: error: the agent is started by: python -m rallypoint agent",
        file=sys.stderr,
    )
    sys.exit(EXIT_USAGE)
