"""Benchmarks in their short form: each runs to its end, and has a row for all that it measures.

No figure is judged, so nothing here is about the product: a change of the product that breaks a
benchmark is found each night. Other tests run the benchmarks that judge what they see, such as
coordinator_crash.py.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
LIMIT_S = 400
"""Of one benchmark. They run beside each other; an idle machine takes half a minute for most."""
STORES = ("Rallypoint", "etcd", "etcd without fsync", "TCPStore", "bare grpc.aio")
CALLS = ("put", "get", "add", "16 puts")
ONCE = "--repeats=1 --turns=1 --workers=1 --sizes=1"

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(LIMIT_S + 20)]

WHICH = ("first", "again")

Rows = Callable[[Any], list[Any]]
"""Takes the figures of a benchmark; returns what names each row that has figures."""


def of_rounds(found: Any) -> list[Any]:
    lists = [
        row[side][f"{which}_ms"] for row in found for side in ("ours", "floor") for which in WHICH
    ]
    return [*(row["nodes"] for row in found), *(len(figures) for figures in lists)]


JSON: dict[str, tuple[Rows, list[Any]]] = {
    "key_value.py --quick --only calls": (
        lambda found: [(o["store"], o["op"], o["clients"]) for o in found["series"] if o["rates"]],
        sorted(product(STORES, CALLS, (1, 8))),
    ),
    "key_value.py --quick --only isolation": (
        lambda found: [
            *(len(found["isolation"][0][f"{arm}_ms"]) for arm in ("alone", "beside", "elsewhere")),
        ],
        [2, 2, 2],
    ),
    "rounds.py --nodes 2 5 --runs 1 --rounds 2 --idle 0.5": (
        of_rounds,
        sorted([2, 5, *[1, 2] * 4]),
    ),
    "journal.py --nodes 8 --runs 1 --rounds 2 --idle 0.5 --fleet 0.5 --fleet-runs 1"
    " --long-rounds 20": (
        lambda found: [
            *(cost["store"] for cost in found["costs"]),
            *(f"{fleet['store']} of {fleet['coordinators']}" for fleet in found["fleets"]),
            f"{len(found['long']['round_ms'])} rounds",
        ],
        sorted(
            [
                *("memory", "sqlite", "etcd", "memory of 1", "sqlite of 1"),
                *("etcd of 1", "etcd of 2", "etcd of 3", "20 rounds"),
            ]
        ),
    ),
    f"recovery.py --launchers warm --only worker agent {ONCE}": (
        lambda found: [(one["loss"], len(one["reduced_s"])) for one in found["series"]],
        [("agent", 1), ("worker", 1)],
    ),
    f"recovery.py --launchers cold --only worker memory {ONCE}": (
        lambda found: [
            *(one["loss"] for one in found["series"]),
            *("memory" for one in found["memory"] if one["with_standbys_mb"] > one["without_mb"]),
        ],
        ["memory", "worker"],
    ),
    "rendezvous.py --only joins threads --nodes 2,3 --repeats 1": (
        lambda found: [
            (one["part"], one["nodes"])
            for one in found["series"]
            if one["ours"] and one["theirs"] and not one["late"]
        ],
        sorted(product(("joins", "threads"), (2, 3))),
    ),
}
"""Command lines of benchmarks that write JSON: what names the rows, and the names, sorted."""
TEXT = {
    "barriers.py --quick": (
        "\n| 8 workers, torch over TCPStore",
        "\n| a worker of 64 fails",
        "\n| a node of a worker",
        "barriers of 8 workers a minute",
    ),
    "groups/process_groups.py --quick": (
        "| ranks | TCPStore in rank 0, ms | TCPStore of the agent, ms | Rallypoint, ms |",
        "\n| 2 | ",
    ),
}
"""Command lines of those that print, and what they print."""


def run(command: str, *flags: str) -> str:
    """Run a benchmark to its end; return what it prints."""
    script, *words = command.split()
    argv = [sys.executable, str(BENCHMARKS / script), *words, *flags]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    # A busy machine misses the target for the time of a start.
    assert done.returncode == 0 or "MISSED: a start takes" in done.stdout, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", JSON)
def test_every_row_is_measured(command: str, tmp_path: Path) -> None:
    """The benchmark ends well, and each of its rows has figures."""
    rows, expected = JSON[command]
    figures = tmp_path / "figures.json"
    run(command, f"--json={figures}")

    assert sorted(rows(json.loads(figures.read_text()))) == expected


@pytest.mark.parametrize("command", TEXT)
def test_every_row_is_printed(command: str) -> None:
    """The benchmark ends well, and each of its rows is in its table."""
    printed = run(command)

    assert [row for row in TEXT[command] if row not in printed] == []
