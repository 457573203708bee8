"""A job with everything that grows with its nodes and rounds, as far as it fits into a message.

Jobs and nodes are values that never change. So a turn only takes a picture: references to them, and
the facts that depend on the rest of the state. The message is filled afterwards, in small steps,
and still shows one moment. Each list has a share of the message and ends before it exceeds that; a
count beside it says how long the whole list is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.server.api.jobs.job import basic_message, past_round_message
from rallypoint.server.contract.node import health_message, node_message
from rallypoint.server.contract.pages import Room
from rallypoint.server.contract.round import member_message
from rallypoint.server.contract.waiting import Explain
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node, Program
from rallypoint.server.core.model.round import RoundSummary
from rallypoint.server.core.reads.explain import explain
from rallypoint.server.core.state.state import State
from rallypoint.server.core.verdicts.health import is_notable
from rallypoint.v1 import job_pb2

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

NODES_BYTES_MAX = 1_536 * 1_024
"""About 5,000 nodes with 8 workers each."""
MEMBERS_BYTES_MAX = 768 * 1_024
"""About 16,000 members with short names."""
HISTORY_BYTES_MAX = 512 * 1_024
HEALTH_BYTES_MAX = 256 * 1_024
"""All other fields together have at most 0.8 MB: 16 long commands are 0.3 MB of them."""
COMMANDS_MAX = 16
"""Commands that are shown. Each has up to 4,096 characters, and where every node has its own
arguments there are as many as nodes."""
NAMES_MAX = 16
"""Names of nodes that are shown with a command."""

_Value = TypeVar("_Value")
_Entry = TypeVar("_Entry", bound=Message)


class JobPicture(Struct):
    """A job as it was at one moment."""

    latest: int
    """Revision of the coordinator then."""
    message: job_pb2.Job
    """What the picture shows; without nodes and history until `fill` has added them."""
    state: State
    """The live state, which says how long nodes have been silent; it decides nothing here."""
    job: Job
    nodes: tuple[Node, ...]
    """In order of arrival."""
    now_ms: int


def take_picture(state: State, job: Job, now_ms: int, explain: Explain = explain) -> JobPicture:
    """Return a picture of a job, in a turn; `fill` makes its message."""
    nodes = tuple(state.nodes_of(job.job_id))
    message = basic_message(state, job, now_ms, explain)
    return JobPicture(state.revision, message, state, job, nodes, now_ms)


def fill(picture: JobPicture, *, with_nodes: bool) -> Iterator[None]:
    """Add the parts that grow with the job, in steps of at most a millisecond, mostly far less.

    Args:
        picture: its message is changed.
        with_nodes: add the nodes and the members of the round too.
    """
    message, job, now_ms = picture.message, picture.job, picture.now_ms
    notable = [health for health in job.health if is_notable(health, job.spec, now_ms)]
    message.health_count = len(notable)
    yield from _extend(
        message.health,
        notable,
        lambda health: health_message(health, job.spec, now_ms),
        HEALTH_BYTES_MAX,
    )
    yield from _extend(
        message.history,
        _latest_first(job),  # so that the latest are kept
        lambda summary: past_round_message(summary, picture.state.clocks, now_ms),
        HISTORY_BYTES_MAX,
    )
    message.history.reverse()
    yield from _add_commands(message, picture.nodes)
    if not with_nodes:
        return
    if job.round is not None:
        yield from _extend(
            message.round.members, job.round.members, member_message, MEMBERS_BYTES_MAX
        )
    yield from _extend(
        message.nodes,
        picture.nodes,
        lambda node: node_message(picture.state, job, node, now_ms),
        NODES_BYTES_MAX,
    )


def _latest_first(job: Job) -> Iterator[RoundSummary]:
    """Return the ended rounds of the latest run."""
    return (summary for summary in reversed(job.history) if summary.run == job.run)


def _add_commands(message: job_pb2.Job, nodes: Iterable[Node]) -> Iterator[None]:
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


def _extend(
    entries: RepeatedCompositeFieldContainer[_Entry],
    values: Iterable[_Value],
    show: Callable[[_Value], _Entry],
    bytes_max: int,
) -> Iterator[None]:
    """Append what fits into `bytes_max`, and stop after each entry."""
    room = Room(bytes_max=bytes_max)
    for value in values:
        entry = show(value)
        if not room.take(entry.ByteSize()):
            return
        entries.append(entry)
        yield


def job_message(state: State, job: Job, now_ms: int, *, with_nodes: bool = True) -> job_pb2.Job:
    """Return a job at once, however long that takes."""
    picture = take_picture(state, job, now_ms)
    for _ in fill(picture, with_nodes=with_nodes):
        pass
    return picture.message
