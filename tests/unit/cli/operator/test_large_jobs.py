"""Jobs of thousands of nodes: what is read of them, and how long tables are printed."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.text import Text

from rallypoint.cli.operator.output import make_table
from rallypoint.cli.operator.reads.snapshot import (
    NAMED_MAX,
    ORDERED_MAX,
    PAGE,
    WHOLE_MAX,
    choose_view,
    take_snapshot,
)
from rallypoint.client.errors import UnknownNode
from rallypoint.v1 import job_pb2, node_pb2

WRAPPED = """\
NODE    STATE   NOTE
n1漢 …  runni…  a long
                note
                that
                wraps
n2      lost    -
"""


def test_table_shares_the_width() -> None:
    """In columns of the terminal, of which some letters take two; a style is that of its cell."""
    long = ("n1漢漢漢漢", Text("running", style="red"), "a long note that wraps")
    console = Console(file=io.StringIO(), width=24, force_terminal=True, color_system="standard")
    console.print(
        make_table(("NODE", "STATE", "NOTE"), [long, ("n2", "lost", "")], flexible="NOTE")
    )
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()

    assert WRAPPED.splitlines() == [Text.from_ansi(line).plain.rstrip() for line in lines]
    assert "\x1b[31mrunni" in lines[1]


def test_long_names_leave_the_numbers_whole() -> None:
    """What is wide gives way: first the flexible column, then the longest names."""
    console = Console(file=io.StringIO(), width=40)
    rows = [("a-name-of-a-job-that-is-very-long", "running", "3/4", "why it is so")]
    columns = ("JOB", "STATE", "NODES", "REASON")
    console.print(make_table(columns, rows, flexible="REASON", is_cropped=True))
    assert isinstance(console.file, io.StringIO)

    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        "JOB               STATE    NODES  REASON",
        "a-name-of-a-job…  running  3/4    why i…",
    ]


class FakeClient:
    """Answers about a job, and counts the calls."""

    def __init__(self, job: job_pb2.Job) -> None:
        self._job = job
        self.calls = list[str]()

    def get_job(self, job_id: str, *, view: Any = job_pb2.JOB_VIEW_FULL) -> Any:
        self.calls.append(job_pb2.JobView.Name(view))
        job = job_pb2.Job()
        job.CopyFrom(self._job)
        if view == job_pb2.JOB_VIEW_BASIC:
            job.ClearField("nodes")
        return SimpleNamespace(job=job)

    def list_nodes(self, job_id: str, *, page_size: int = 0) -> Any:
        self.calls.append(f"ListNodes {page_size}")
        return iter(self._job.nodes)

    def get_node(self, job_id: str, name: str) -> Any:
        self.calls.append(f"GetNode {name}")
        for node in self._job.nodes:
            if node.name == name:
                return SimpleNamespace(node=node)
        raise UnknownNode("there is no such node", job_id=job_id, node_name=name)


def job_of(count: int, *awaited: str) -> job_pb2.Job:
    return job_pb2.Job(
        job_id="train",
        node_count=count,
        nodes=[node_pb2.Node(name=f"n{number}") for number in range(count)],
        waiting=job_pb2.Waiting(nodes=[job_pb2.AwaitedNode(name=name) for name in awaited]),
    )


def take(job: job_pb2.Job, *, is_whole: bool = False) -> tuple[list[str], list[str]]:
    """Return the names of the nodes in a snapshot, and the calls that it took."""
    client: Any = FakeClient(job)
    found = take_snapshot(client, "train", is_whole=is_whole)
    return [node.name for node in found.nodes], client.calls


def test_small_job_is_read_whole() -> None:
    """In a message, with its nodes."""
    names, calls = take(job_of(WHOLE_MAX))

    assert (len(names), calls) == (WHOLE_MAX, ["JOB_VIEW_BASIC", "JOB_VIEW_FULL"])
    assert choose_view(job_of(WHOLE_MAX)) == job_pb2.JOB_VIEW_FULL


def test_of_a_large_job_all_nodes_are_read() -> None:
    """The first page has those that came first: the ranks in front may be missing in it."""
    names, calls = take(job_of(ORDERED_MAX))

    assert (len(names), calls) == (ORDERED_MAX, ["JOB_VIEW_BASIC", "ListNodes 0"])


def test_of_a_very_large_job_the_nodes_are_read_that_matter() -> None:
    """A page, and those that the job waits for; one that is gone does not count."""
    names, calls = take(job_of(4_096, "n7", "n4000", "gone", "n4001"))

    assert names == [*(f"n{number}" for number in range(PAGE)), "n4000", "n4001"]
    assert calls == [
        *("JOB_VIEW_BASIC", f"ListNodes {PAGE}"),
        *("GetNode n4000", "GetNode gone", "GetNode n4001"),
    ]
    assert choose_view(job_of(WHOLE_MAX + 1)) == job_pb2.JOB_VIEW_BASIC


def test_so_many_calls_at_most() -> None:
    """However many nodes need attention."""
    job = job_of(4_096)
    job.health.extend(node_pb2.NodeHealth(node_name=f"n{number}") for number in range(100, 4_000))
    names, calls = take(job)

    assert (len(names), len(calls)) == (PAGE + NAMED_MAX, 2 + NAMED_MAX)


def test_all_nodes_of_a_large_job_are_read_if_wanted() -> None:
    """By pages."""
    names, calls = take(job_of(4_096), is_whole=True)

    assert (len(names), calls) == (4_096, ["JOB_VIEW_BASIC", "ListNodes 0"])
