"""What the commands show of jobs, on terminals of several sizes."""

from __future__ import annotations

import io
import threading
from collections import UserList
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.text import Text

from rallypoint.base.values import describe_ms
from rallypoint.cli.operator import app
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.cli.operator.output import make_table
from rallypoint.cli.operator.reads.following import follow
from rallypoint.cli.operator.reads.live import NODES_MIN, fit
from rallypoint.cli.operator.reads.snapshot import (
    NAMED_MAX,
    ORDERED_MAX,
    PAGE,
    WHOLE_MAX,
    choose_view,
    take_snapshot,
)
from rallypoint.cli.operator.views.events import describe_event, hang
from rallypoint.cli.operator.views.status import Extent, _describe_share, render_status
from rallypoint.cli.operator.views.times import compute_times
from rallypoint.client import Client
from rallypoint.client.errors import NotAllowed, UnknownJob, UnknownNode
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import job_pb2, node_pb2, round_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.wire.durations import to_duration
from support.operator import scenes

# --- `rallypoint events`: a job that is unknown is not followed for ever ---

EVENT = events_pb2.Event(job_id="gone", text="it began")


class Pages(UserList[events_pb2.Event]):
    """Events as the client reads them, in pages."""

    latest = events_pb2.ListEventsResponse()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Return a client of a coordinator that knows no job but `train`; `gone` has left events."""

    def list_events(job: str, *, kinds: list[int]) -> Pages:
        return Pages([EVENT] if job == "gone" and not kinds else [])

    made = Mock(
        get_job=Mock(side_effect=UnknownJob("there is no job 'x'", job_id="trian")),
        list_jobs=Mock(return_value=[job_pb2.JobSummary(job_id="train")]),
        list_events=Mock(side_effect=list_events),
        watch_events=MagicMock(),
    )
    monkeypatch.setattr(Invocation, "check_reachable", lambda self: None)
    monkeypatch.setattr(Invocation, "open_client", lambda self, limit_s: made)
    return made


@pytest.mark.parametrize(
    "more", [(), ("-f",), ("-f", "-n", "0"), ("-o", "json"), ("--kind", "round-sealed")]
)
def test_a_job_that_is_unknown_is_an_error(
    more: tuple[str, ...], client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the name that may be meant, as in all commands."""
    assert app.main("events", ["trian", *more]) == 3
    shown = capsys.readouterr()

    assert shown.out == ""
    assert shown.err.endswith("there is no job 'x'; did you mean 'train'?\n")
    client.watch_events.assert_not_called()


@pytest.mark.parametrize("more", [(), ("--kind", "round-sealed"), ("-n", "0")])
def test_a_job_that_is_gone_has_events(
    more: tuple[str, ...], client: Mock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if none of them is wanted."""
    assert app.main("events", ["gone", *more]) == 0

    assert ("it began" in capsys.readouterr().out) == (not more)


def test_a_job_without_events_is_followed(client: Mock) -> None:
    """It exists."""
    client.get_job.side_effect = None
    client.watch_events.return_value.__enter__.return_value = []
    assert app.main("events", ["new", "-f"]) == 0

    client.watch_events.assert_called_once()


# --- A view that is slower than its job shows the newest state, and the end after it ---

LIMIT_S = 20.0
STATES = 500


class Busy:
    """A client whose job changes often, and then ends."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.sent = threading.Event()
        """All states were read."""
        self.ending = threading.Event()

    @contextmanager
    def watch_job(self, *_: Any, **__: Any) -> Iterator[Iterator[jobs_pb2.WatchJobResponse]]:
        yield self._answers()

    def _answers(self) -> Iterator[jobs_pb2.WatchJobResponse]:
        for revision in range(1, STATES + 1):
            job = job_pb2.Job(job_id="j", revision=revision)
            yield jobs_pb2.WatchJobResponse(job=job, revision=revision)
        self.sent.set()
        self.ending.wait(LIMIT_S)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.ending.set()


@pytest.mark.parametrize("error", [None, NotAllowed("not yours")])
def test_slow_view_gets_the_newest_state_and_then_the_end(error: Exception | None) -> None:
    """What came before it is not kept, however many states there were."""
    busy = Busy(error)
    with follow(cast("Client", busy), "j", view=job_pb2.JOB_VIEW_FULL) as changes:
        assert busy.sent.wait(LIMIT_S)
        newest = changes.get(timeout=LIMIT_S)
        assert newest.job is not None
        with pytest.raises(Empty):
            changes.get(timeout=0)
        busy.ending.set()
        end = changes.get(timeout=LIMIT_S)

    assert STATES == newest.job.revision
    assert (None, error) == (end.job, end.error)


def test_end_overtakes_no_state() -> None:
    """The last state of a run is shown also when the run ends before it was looked at."""
    busy = Busy()
    busy.ending.set()
    with follow(cast("Client", busy), "j", view=job_pb2.JOB_VIEW_FULL) as changes:
        seen = [changes.get(timeout=LIMIT_S)]
        while seen[-1].job is not None:
            seen.append(changes.get(timeout=LIMIT_S))

    assert seen[-2].job is not None
    assert STATES == seen[-2].job.revision


# --- Jobs of thousands of nodes: what is read of them, and how long tables are printed ---

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


# --- The live view of a job on terminals of several sizes ---


@pytest.mark.parametrize(("columns", "lines"), [(80, 30), (80, 50), (200, 24), (60, 40)])
def test_whole_view_fits(columns: int, lines: int) -> None:
    """However many lines the facts take, such as a wait that names 16 nodes."""
    bench, agents = scenes.running(JobSpec(min_nodes=30, max_nodes=40, max_restarts=3), nodes=40)
    agents[33].fail()
    bench.advance(100)
    job = scenes.show(bench)
    console = Console(width=columns, height=lines)
    extent = fit(console, job, job.nodes, Extent(nodes=None, rounds=5))
    shown = console.render_lines(render_status(job, job.nodes, extent))

    assert extent.nodes is not None and extent.nodes > NODES_MIN
    assert lines - 1 <= len(shown) <= lines


# --- What a narrow terminal shows of an event ---


def test_a_wrapped_event_leaves_the_times_in_their_column() -> None:
    """So one sees where the next event begins."""
    event = events_pb2.Event(
        run=1, round=2, text="round 2 was sealed", round_sealed=events_pb2.RoundSealed()
    )
    event.time.FromSeconds(0)
    console = Console(file=io.StringIO(), width=60)
    console.print(hang(describe_event(event, has_job=False)))
    assert isinstance(console.file, io.StringIO)
    first, second = (line.rstrip() for line in console.file.getvalue().splitlines())

    assert first[4:].endswith("  run 1/2   round sealed        round 2")
    assert second == f"{'':21}was sealed"


# --- Where the time of a run went, and how times and shares are written ---

FIRST, LATER = round_pb2.ROUND_REASON_FIRST, round_pb2.ROUND_REASON_NODE_LOST


def at(second: int) -> Timestamp:
    return Timestamp(seconds=1_000_000 + second)


def ended(
    number: int, began: int, lasted: int, started: int | None, *, run: int = 1
) -> job_pb2.RoundSummary:
    """Return a round that has ended; times in s."""
    summary = job_pb2.RoundSummary(
        run=run,
        number=number,
        begin_reason=FIRST if number == 1 else LATER,
        lasted_for=to_duration(lasted * 1000),
        began_at=at(began),
    )
    if started is not None:
        summary.started_after.CopyFrom(to_duration(started * 1000))
    return summary


def running(age: int, started: int | None) -> round_pb2.Round:
    """Return a round that has not ended; times in s."""
    found = round_pb2.Round(age=to_duration(age * 1000))
    if started is not None:
        found.started_after.CopyFrom(to_duration(started * 1000))
    return found


def job(*history: job_pb2.RoundSummary, age: int, **fields: object) -> job_pb2.Job:
    return job_pb2.Job(
        run=1,
        opened_at=at(0),
        age=to_duration(age * 1000),
        history=history,
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("found", "running_s", "starting_s", "between_s"),
    [
        (job(age=20), 0, 0, 20),
        (job(age=20, round=running(15, 2)), 13, 2, 5),
        (job(age=20, round=running(15, None)), 0, 15, 5),
        (job(ended(1, 5, 60, 1), age=100, round=running(30, 2)), 59 + 28, 3, 10),
        (job(ended(1, 5, 60, None), age=100), 0, 60, 40),
        (job(ended(1, 5, 60, 1), age=1_000, closed_at=at(65)), 59, 1, 5),
        (job(ended(9, -90, 60, 1, run=0), ended(1, 5, 60, 1), age=70), 59, 1, 10),
        (job(ended(7, 500, 60, 1), age=600, round=running(38, 1)), 59 + 37, 2, 2),
    ],
)
def test_every_second_counts_once(
    found: job_pb2.Job, running_s: int, starting_s: int, between_s: int
) -> None:
    """Of the latest run: while workers ran, while they were started, and the rest."""
    times = compute_times(found)

    assert (times.running, times.starting, times.between) == (
        running_s * 1000,
        starting_s * 1000,
        between_s * 1000,
    )
    assert times.is_whole == (not found.history or found.history[0].number != 7)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1.0s"),
        (9_999, "9.9s"),
        (10_000, "10s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (61_000, "1m1s"),
        (3_599_999, "59m59s"),
        (3_600_000, "1h"),
        (3_660_000, "1h1m"),
        (3_659_000, "1h"),
        (90_000_000, "1d1h"),
        (864_000_000, "10d"),
    ],
)
def test_times_have_two_units_at_most(ms: int, text: str) -> None:
    """The largest, and the next if it is not zero."""
    assert describe_ms(ms) == text


@pytest.mark.parametrize(
    ("part", "total", "text"),
    [(0, 10, "0%"), (10, 10, "100%"), (1, 1_000, "<1%"), (999, 1_000, ">99%"), (1, 3, "33%")],
)
def test_only_all_is_everything(part: int, total: int, text: str) -> None:
    """A second of a day is not nothing."""
    assert _describe_share(part, total) == text
