"""The coordinator is killed at every kind of moment, beside agents, workers and readers.

The benchmark compares everything with what it has done to the jobs; these are short runs of it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "coordinator_crash.py"
LIMIT_S = 280


def crash(figures: Path, *flags: str) -> list[str]:
    """Run the benchmark; return the moments at which it has killed a coordinator."""
    argv = [sys.executable, str(BENCHMARK), "--json", str(figures), *flags]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [one["aim"] for one in json.loads(figures.read_text())["crashes"]]


@pytest.mark.timeout(LIMIT_S + 20)
def test_nothing_is_forgotten(tmp_path: Path) -> None:
    """No worker restarts without a failure, nothing is taken back, every change counts."""
    moments = crash(tmp_path / "figures.json", "--quick")

    assert len(moments) >= 3


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_nothing_is_forgotten_at_any_moment(tmp_path: Path) -> None:
    """The same, with a crash at every kind of moment that the benchmark knows."""
    moments = crash(tmp_path / "figures.json", "--crashes=20", "--agents=8", "--seed=2")

    assert len(set(moments)) >= 12
