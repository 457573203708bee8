"""`rallypoint`: its --help, its --version, and the choice of a command."""

from __future__ import annotations

from rallypoint.cli.flags.menu import Menu

PROG = "rallypoint"
MENU = Menu(
    prog=PROG,
    summary="Elastic, fault-tolerant launching of distributed PyTorch.",
    commands={
        "agent": "run this node's workers of a job (also: node-agent)",
        "coordinator": "serve jobs: membership, ranks and restarts (also: coordinator)",
        "journal": "read, check, back up and move a coordinator's journal",
    },
    examples=(
        "agent --nproc-per-node 2 train.py",
        "coordinator --port 50051",
        "journal verify sqlite:journal.sqlite",
    ),
    aliases={"node-agent": "agent"},
)
