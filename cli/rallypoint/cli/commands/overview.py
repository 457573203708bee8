"""`rallypoint`: its --help, its --version, and the choice of a command."""

from __future__ import annotations

from rallypoint.cli.flags.menu import Menu
from rallypoint.cli.operator.table import SECTIONS

PROG = "rallypoint"
MENU = Menu(
    prog=PROG,
    summary="Elastic, fault-tolerant launching of distributed PyTorch.",
    commands={
        **{name: line for rows in SECTIONS.values() for name, (line, _) in rows.items()},
        "agent": "run this node's workers of a job (also: node-agent)",
        "coordinator": "serve jobs: membership, ranks and restarts (also: coordinator)",
        "relay": "carry the agents of a rack to the coordinator on one stream",
        "journal": "read, check, back up and move a coordinator's journal",
    },
    headings={
        **{next(iter(rows)): heading for heading, rows in SECTIONS.items()},
        "agent": "Run jobs",
    },
    examples=(
        "agent --nproc-per-node 2 train.py",
        "coordinator --port 50051",
        "jobs --coordinator head:50051",
    ),
    aliases={"node-agent": "agent"},
)
