"""What the nodes of a job run, for readers: the same command of many nodes is shown once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.node import Node, Program
from rallypoint.v1 import job_pb2

COMMANDS_MAX = 16
"""Commands that are shown. Each has up to 4,096 characters, and where every node has its own
arguments there are as many as nodes."""
NAMES_MAX = 16
"""Names of nodes that are shown with a command."""


def add_commands(message: job_pb2.Job, nodes: Iterable[Node]) -> Iterator[None]:
    """Add the commands of a job's nodes, in order of arrival; stop after each node."""
    nodes_by_command: dict[tuple[str, Program], list[NodeName]] = {}
    for node in nodes:
        if node.identity.program is not None:
            command = (node.identity.role, node.identity.program)
            nodes_by_command.setdefault(command, []).append(node.name)
        yield
    message.command_count = len(nodes_by_command)
    for (role, program), names in islice(nodes_by_command.items(), COMMANDS_MAX):
        message.commands.add(
            role=role,
            user=program.user,
            command_line=program.command_line,
            node_names=names[:NAMES_MAX],
            node_count=len(names),
        )
