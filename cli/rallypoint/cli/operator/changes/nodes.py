"""`rallypoint drain`, `cordon` and `uncordon`: changes of a job's nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

from google.protobuf.message import Message

from rallypoint.cli.operator.changes.options import (
    WAIT_S,
    DrainWaitLimit,
    IsWaiting,
    Reason,
    read_wait,
)
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.options import Command, Job, argument, option

if TYPE_CHECKING:
    from rallypoint.v1 import node_service_pb2 as nodes_pb2

Answer = TypeVar("Answer", bound=Message)
DRAIN_S = 60.0
"""Time to save a checkpoint of common size. Zero would stop the workers at once."""
DRAIN_S_MAX = 30 * 24 * 3600.0
Nodes = Annotated[list[str], argument("NODE", help="the nodes, by name")]


@Command
def drain(
    invocation: Invocation,
    job: Job,
    nodes: Nodes,
    reason: Reason = "",
    drain_timeout: Annotated[
        float,
        option(
            "--drain-timeout",
            metavar="SECONDS",
            min=0.0,
            max=DRAIN_S_MAX,
            help="how long workers may run to save their work; 0: stop them at once",
        ),
    ] = DRAIN_S,
    is_waiting: IsWaiting = False,
    wait_timeout: DrainWaitLimit = None,
) -> None:
    """Take nodes out of a job, after their workers have had time to save their work.

    The job continues without the nodes, and their agents exit with 0. If you drain a node again,
    the earlier end counts. --wait waits until all of them have left.
    """
    from rallypoint.cli.operator.changes.words import describe_drain
    from rallypoint.wire.durations import set_ms

    client = invocation.client

    def drain_one(node: str) -> tuple[nodes_pb2.DrainNodeResponse, str]:
        answer = client.drain_node(job, node, drain_timeout_s=drain_timeout, reason=reason)
        return answer, describe_drain(job, node, answer.time_left)

    names = tuple(dict.fromkeys(nodes))
    limit_s = drain_timeout + WAIT_S
    wait = read_wait(is_waiting=is_waiting, limit_s=wait_timeout, default_s=limit_s)

    def wait_for_all(answers: Sequence[nodes_pb2.DrainNodeResponse]) -> None:
        from rallypoint.cli.operator.changes.goals import NodesLeave
        from rallypoint.cli.operator.changes.waiting import wait_for

        wait_for(invocation, job, NodesLeave(names), wait.limit_s)
        for answer in answers:
            set_ms(answer.time_left, 0)  # as the answer to another drain

    _for_each(invocation, names, drain_one, wait_for_all if wait.is_wanted else None)


@Command
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


@Command
def uncordon(invocation: Invocation, job: Job, nodes: Nodes, reason: Reason = "") -> None:
    """Let nodes into the later rounds of a job again.

    It ends a cordon and a quarantine, and forgets the failures that led to it.
    """
    from rallypoint.cli.operator.changes.words import describe_uncordon

    client = invocation.client

    def uncordon_one(node: str) -> tuple[Message, str]:
        return client.uncordon_node(job, node, reason=reason), describe_uncordon(job, node)

    _for_each(invocation, nodes, uncordon_one)


def _for_each(
    invocation: Invocation,
    nodes: Sequence[str],
    change: Callable[[str], tuple[Answer, str]],
    wait: Callable[[Sequence[Answer]], None] | None = None,
) -> None:
    """Change one node after the other, in order; a refusal ends it, and what was done is shown.

    Args:
        invocation: of the command.
        nodes: their names.
        change: one node; it returns the answer, and a line.
        wait: for what was asked for; it may change the answers. None: there is no wait.
    """
    answers = list[Answer]()
    try:
        for node in dict.fromkeys(nodes):
            answer, text = change(node)
            answers.append(answer)
            if not invocation.output.is_json:
                invocation.output.print_line(text)
        if wait is not None:
            wait(answers)
    finally:
        if invocation.output.is_json:
            invocation.output.print_json(answers)
