"""The coordinator is killed at every kind of moment, beside agents, workers and readers.

The benchmark compares everything with what it has done to the jobs; these are short runs of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.commands import run_program
from support.tries.commit import draw

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "coordinator_crash.py"
LIMIT_S = 580
FEW = ("--crashes=8", "--agents=8", f"--seed={draw('crashes', 10**6)}")
"""Other moments for each commit."""


def crash(results: Path, *flags: str) -> list[dict[str, Any]]:
    """Run the benchmark; return its crashes."""
    done = run_program([sys.executable, BENCHMARK, "--json", results, *flags], LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return [case for case in json.loads(results.read_text())["cases"] if "aim" in case]


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_nothing_is_forgotten(tmp_path: Path) -> None:
    """No worker restarts without a failure, nothing is taken back, every change counts."""
    crashes = crash(tmp_path / "results.json", *FEW)

    assert len(crashes) >= 8


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT_S + 20)
def test_nothing_is_forgotten_at_any_moment(tmp_path: Path) -> None:
    """The same, with a crash at every kind of moment that the benchmark knows."""
    crashes = crash(tmp_path / "results.json", "--crashes=20", "--agents=8", "--seed=2")

    assert len({one["aim"] for one in crashes}) >= 12


@pytest.mark.nightly  # tests/e2e/owners/ has each kind of loss by itself
@pytest.mark.timeout(LIMIT_S + 20)
def test_jobs_move_to_other_coordinators(tmp_path: Path) -> None:
    """Three share an etcd; one is killed, suspended or ended at a time, and then etcd fails too."""
    crashes = crash(tmp_path / "results.json", "--state=etcd", "--quick")

    assert {one["kind"] for one in crashes} == {"kill", "freeze", "end"}
    assert all(len(one["served_s"]) == one["jobs"] for one in crashes)
