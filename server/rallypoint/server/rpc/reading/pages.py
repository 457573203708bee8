"""Pages of nodes: bounded by entries and by bytes, and built in slices.

A token names the last entry of its page, not a number of entries. So it stays valid when entries
come and go: the others are neither left out nor shown twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.checks import require
from rallypoint.server.rpc.reading.pace import Pace
from rallypoint.server.rpc.views.node import node_message
from rallypoint.v1 import node_service_pb2

PAGE_BYTES_MAX = 1_024 * 1_024
"""Longest page, without its token. A page with one entry may be longer: a node with 4,096 ended
workers takes 0.3 MB."""
FRAME_BYTES_MAX = 8
"""Bytes that a page adds to each entry."""


class NodePicture(Struct):
    """Nodes of a job as they were at one moment."""

    state: State
    """The live state, which says how long nodes have been silent; it decides nothing here."""
    job: Job
    nodes: list[Node]
    """After the page's token, in order of arrival."""
    node_count: int
    """All nodes of the job."""
    now_ms: int


def take_nodes(state: State, job: Job, token: str, now_ms: int) -> NodePicture:
    """Return the nodes after a token, in a turn.

    Raises:
        InvalidMessage: when the token is of another run, or none.
    """
    after = _read_token(token, job.run)
    sessions = state.sessions.get(job.job_id, {})
    found = [node for session in sessions if (node := state.nodes[session]).arrival > after]
    found.sort(key=lambda node: node.arrival)  # a node that was renamed is the last of its job
    return NodePicture(state, job, found, len(sessions), now_ms)


async def show_nodes(
    picture: NodePicture, pace: Pace, size: int
) -> node_service_pb2.ListNodesResponse:
    """Return a page of the nodes of a picture; at most `size`."""
    page, left = node_service_pb2.ListNodesResponse(node_count=picture.node_count), PAGE_BYTES_MAX
    job, run = picture.job, picture.job.run
    nodes = iter(picture.nodes)

    def fill() -> Iterator[None]:
        nonlocal left
        last = -1
        for node in nodes:
            message = node_message(picture.state, job, node, picture.now_ms)
            left -= message.ByteSize() + FRAME_BYTES_MAX
            if len(page.nodes) == size or (left < 0 and page.nodes):
                page.next_page_token = f"{run}:{last}"
                return
            page.nodes.append(message)
            last = node.arrival
            yield

    await pace.drive(fill())
    return page


_TOKEN = re.compile(r"(\d{1,16}):(\d{1,16})", re.ASCII)


def _read_token(token: str, run: int) -> int:
    """Return the arrival of the last node before a page; -1 for the first page."""
    if not token:
        return -1
    match = _TOKEN.fullmatch(token)
    require(match is not None, "page_token", "is not the token of a page")
    assert match is not None
    require(int(match[1]) == run, "page_token", f"is not of run {run}: read the first page again")
    return int(match[2])
