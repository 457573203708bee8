"""`rallypoint drain`, `cordon` and `uncordon`: changes of a job's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from google.protobuf.message import Message

from rallypoint.cli.operator.changes.jobs import Job, Reason
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import command

DRAIN_S = 60.0
"""Time to save a checkpoint of common size. Zero would stop the workers at once."""
DRAIN_S_MAX = 30 * 24 * 3600.0
Nodes = Annotated[
    list[str], typer.Argument(metavar="NODE…", help="the nodes, by name", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for one in (drain, cordon, uncordon):
        app.command()(one)


@command
def drain(
    invocation: Invocation,
    job: Job,
    nodes: Nodes,
    reason: Reason = "",
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            metavar="SECONDS",
            min=0.0,
            max=DRAIN_S_MAX,
            help="how long workers may run to save their work; 0: stop them at once",
        ),
    ] = DRAIN_S,
) -> None:
    """Let nodes leave a job: their workers learn it, and have time to save their work.

    The job continues without the nodes, and their agents exit with 0. After several requests the
    earliest end counts.
    """
    from rallypoint.cli.operator.changes.words import describe_drain

    client = invocation.client

    def drain_one(node: str) -> tuple[Message, str]:
        answer = client.drain_node(job, node, drain_timeout_s=drain_timeout, reason=reason)
        return answer, describe_drain(job, node, answer.time_left)

    _for_each(invocation, nodes, drain_one)


@command
def cordon(invocation: Invocation, job: Job, nodes: Nodes, reason: Reason = "") -> None:
    """Keep nodes out of the later rounds of a job. Workers that run there keep running.

    A node need not be connected: the cordon belongs to its name.
    """
    from rallypoint.cli.operator.changes.words import describe_cordon
    from rallypoint.cli.operator.explanations import suggest_node

    client = invocation.client

    def cordon_one(node: str) -> tuple[Message, str]:
        answer = client.cordon_node(job, node, reason=reason)
        near = "" if answer.connected else suggest_node(client, job, node)
        return answer, describe_cordon(job, node, near, is_connected=answer.connected)

    _for_each(invocation, nodes, cordon_one)


@command
def uncordon(invocation: Invocation, job: Job, nodes: Nodes) -> None:
    """Let nodes into the later rounds of a job again.

    It ends a cordon and a quarantine, and forgets the failures that led to it.
    """
    from rallypoint.cli.operator.changes.words import describe_uncordon

    client = invocation.client

    def uncordon_one(node: str) -> tuple[Message, str]:
        return client.uncordon_node(job, node), describe_uncordon(job, node)

    _for_each(invocation, nodes, uncordon_one)


def _for_each(
    invocation: Invocation, nodes: Sequence[str], change: Callable[[str], tuple[Message, str]]
) -> None:
    """Change one node after the other, in order; a refusal ends it, and what was done is shown."""
    answers = list[Message]()
    try:
        for node in dict.fromkeys(nodes):
            answer, text = change(node)
            answers.append(answer)
            if not invocation.output.is_json:
                invocation.output.print_line(text)
    finally:
        if invocation.output.is_json:
            invocation.output.print_json(answers)
