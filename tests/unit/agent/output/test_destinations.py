"""Where the output of a worker goes, by our own tables and compared with torch."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest, Std

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.output.destinations import (
    ALL,
    Choice,
    Destinations,
    OutputSpec,
    Ranks,
    Route,
    Streams,
    assign_destinations,
    compute_prefix,
    compute_routes,
)
from support.core.orders import run_order

WORKERS = 3
ASKED: tuple[Std | dict[int, Std], ...] = (
    *(Std(value) for value in range(4)),
    {0: Std.OUT, 2: Std.ALL},
    {1: Std.ERR, 0: Std.NONE},
)
SHOWN = (None, {0}, {1, 2}, {7})


def order(workers: int = WORKERS, first_rank: int = 8) -> RunOrder:
    return run_order(
        number=5,
        world_size=64,
        group_world_size=8,
        master_addr="m",
        master_port=1,
        restart_count=2,
        group_rank=4,
        first_rank=first_rank,
        local_world_size=workers,
        role="trainer",
        role_world_size=64,
        max_restarts=3,
    )


def to_choices(asked: Std | dict[int, Std]) -> tuple[Choice, ...]:
    if isinstance(asked, Std):
        return (Choice(ALL, Streams(asked.value)),)
    return tuple(Choice(Ranks(rank, rank), Streams(std.value)) for rank, std in asked.items())


def ask_torch(folder: str, redirects: object, tee: object, shown: set[int] | None) -> LogsDest:
    specs = DefaultLogsSpecs(folder, redirects, tee, shown)  # type: ignore[arg-type]
    environments = {rank: {"TORCHELASTIC_RUN_ID": "job"} for rank in range(WORKERS)}
    return specs.reify(environments)


@pytest.mark.parametrize("shown", SHOWN)
def test_destinations_are_those_of_torch(tmp_path: Path, shown: set[int] | None) -> None:
    """Every combination of -r and -t, with and without a filter, gives the same as torch."""
    if not hasattr(ask_torch(str(tmp_path), ASKED[0], ASKED[0], shown), "filtered_stdout"):
        pytest.skip("this torch filters no logs")
    for redirects, tee in product(ASKED, ASKED):
        theirs = ask_torch(str(tmp_path), redirects, tee, shown)
        spec = OutputSpec(
            redirects=to_choices(redirects),
            tee=to_choices(tee),
            shown_local=tuple(Ranks(rank, rank) for rank in shown or ()),
        )
        ours = assign_destinations(spec, order(), os.path.dirname(theirs.filtered_stdout))

        assert {name: getattr(ours, name) for name in Destinations.__struct_fields__} == vars(
            theirs
        )


@pytest.mark.parametrize(
    ("claim", "choices", "chosen"),
    [
        ("a range of local ranks", [(Ranks(1, 7), 3)], [0, 3, 3]),
        ("a global rank", [(Ranks(9, 9, is_global=True), 1)], [0, 1, 0]),
        ("a range of global ranks", [(Ranks(0, 9, is_global=True), 2)], [2, 2, 0]),
        ("the last that fits counts", [(ALL, 3), (Ranks(10, 10, is_global=True), 0)], [3, 3, 0]),
        ("another node's", [(Ranks(0, 7, is_global=True), 3)], [0, 0, 0]),
    ],
)
def test_workers_are_chosen(
    claim: str, choices: list[tuple[Ranks, int]], chosen: list[int]
) -> None:
    """Streams can be chosen by range and by global rank; the node's first rank is 8."""
    spec = OutputSpec(redirects=tuple(Choice(ranks, Streams(value)) for ranks, value in choices))
    found = assign_destinations(spec, order(), "/logs")
    streams = [
        bool(found.stdouts[rank]) * 1 + bool(found.stderrs[rank]) * 2 for rank in range(WORKERS)
    ]

    assert streams == chosen, claim


@pytest.mark.parametrize(
    ("local", "worldwide", "shown"),
    [
        ((), (), [0, 1, 2]),
        ((), (Ranks(9, 20, True),), [1, 2]),
        ((), (Ranks(8, 8, True), Ranks(10, 10, True)), [0, 2]),
        ((Ranks(0, 1),), (Ranks(9, 20, True),), [1]),
        ((Ranks(0, 0),), (Ranks(9, 20, True),), []),
    ],
)
def test_console_shows_whom_both_filters_name(
    local: tuple[Ranks, ...], worldwide: tuple[Ranks, ...], shown: list[int]
) -> None:
    """A hidden stream is discarded, unless it also goes to a file."""
    spec = OutputSpec(tee=(Choice(ALL, Streams.OUT),), shown_local=local, shown_global=worldwide)
    found = assign_destinations(spec, order(), "/logs")

    assert sorted(found.tee_stdouts) == shown
    assert [rank for rank, path in found.stderrs.items() if path == ""] == shown
    assert set(found.stderrs.values()) <= {"", os.devnull}
    assert all(path.startswith("/logs/") for path in found.stdouts.values())


def route(spec: OutputSpec, folder: str | None, rank: int = 1) -> tuple[Route, Route]:
    destinations = assign_destinations(spec, order(), folder)
    return compute_routes(destinations, spec, order(), rank, "n7")


def test_routes_of_a_worker() -> None:
    """A plain stream goes to the console, a redirected one to a file, a tee'd one to both."""
    tee_out = OutputSpec(
        redirects=(Choice(ALL, Streams.ERR),),
        tee=(Choice(ALL, Streams.OUT),),
        stdout_needles=(b"loss",),
        stderr_needles=(b"loss",),
    )

    assert route(OutputSpec(), "/logs") == (Route(), Route())
    assert route(tee_out, "/logs") == (
        Route(
            "/logs/1/stdout.log",
            True,
            b"[trainer1]:",
            "/logs/filtered_stdout.log",
            (b"loss",),
        ),
        Route("/logs/1/stderr.log", is_shown=False),
    )


def test_routes_without_files() -> None:
    """Without files, redirected streams go to the console; tee'd ones keep their prefix."""
    spec = OutputSpec(
        log_dir=os.devnull,
        redirects=(Choice(ALL, Streams.ERR),),
        tee=(Choice(ALL, Streams.OUT),),
        stdout_needles=(b"loss",),
        shown_local=(Ranks(0, 1),),
    )

    assert route(spec, None) == (Route("", True, b"[trainer1]:"), Route())
    assert route(spec, None, rank=2) == (Route(is_shown=False), Route(is_shown=False))
    assert assign_destinations(spec, order(), None).error_files[0] == os.devnull


def test_routes_of_a_plug_in_that_wants_no_files() -> None:
    """torch's destinations for log dir /dev/null mean: everything to the console, unchanged."""
    theirs = ask_torch(os.devnull, Std.ALL, Std.ALL, None)
    ours = Destinations(**vars(theirs))

    assert compute_routes(ours, OutputSpec(), order(), 0, "n7") == (Route(), Route())


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        ("", "[trainer1]:"),
        ("[${rank}]: ", "[9]: "),
        ("$role_name/${local_rank} ", "trainer/1 "),
        ("${node} ${group_rank} ${restart_count} ${round}|", "n7 4 2 5|"),
        ("${unknown} $$ 5$ ", "${unknown} $ 5$ "),
    ],
)
def test_prefix_template(template: str, prefix: str) -> None:
    """A prefix may use torch's three variables and four of ours; unknown ones are kept."""
    assert compute_prefix(template, order(), 1, "n7") == prefix
