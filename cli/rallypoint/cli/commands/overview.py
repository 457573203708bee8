"""`rallypoint`: its --help, its --version, and the choice of a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rallypoint.cli.flags.parser import fail

PROG = "rallypoint"
COMMANDS = {
    "agent": "run this node's workers of a job (also: node-agent)",
    "coordinator": "serve jobs: membership, ranks and restarts (also: coordinator)",
}
"""What --help says about each command."""
NAME_WIDTH = 14
HELP = "\n".join(
    (
        "Elastic, fault-tolerant launching of distributed PyTorch.",
        "",
        f"Usage: {PROG} <command> [flags]",
        "",
        "Commands:",
        *(f"  {name:{NAME_WIDTH}}{meaning}" for name, meaning in COMMANDS.items()),
        "",
        "Flags:",
        f"  {'-h, --help':{NAME_WIDTH}}show this help; --help-all is the same",
        f"  {'--version':{NAME_WIDTH}}show the version",
        "",
        "Examples:",
        f"  {PROG} agent --nproc-per-node 2 train.py",
        f"  {PROG} coordinator --port 50051",
        "",
        f"Flags of a command: {PROG} <command> --help",
    )
)


def main(argv: Sequence[str]) -> tuple[str, list[str]]:
    """Return the chosen command and its arguments; print and exit for anything else."""
    if not argv:
        fail(PROG, f"no command given: {' or '.join(COMMANDS)} (see {PROG} --help)")
    name, *words = argv
    if name in ("-h", "--help", "--help-all"):
        print(HELP)
        sys.exit(0)
    if name == "--version":
        from importlib.metadata import version

        print(f"{PROG} {version('rallypoint')}")
        sys.exit(0)
    if name not in COMMANDS:
        fail(PROG, f"unknown command {name!r}{_suggest(name)} (see {PROG} --help)")
    return name, words


def _suggest(name: str) -> str:
    import difflib  # slow to import, and only an error needs it

    near = difflib.get_close_matches(name, (*COMMANDS, "node-agent"), n=1)
    return f"; did you mean {near[0].removeprefix('node-')}?" if near else ""
