"""The benchmark of rounds: one short run of everything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "rounds.py"
LIMIT_S = 120


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_rounds_are_measured_beside_the_floor(tmp_path: Path) -> None:
    """Each size has a first round and every later one, with both servers, and an idle time."""
    figures = tmp_path / "figures.json"
    short = ("--nodes", "2", "5", "--runs", "1", "--rounds", "2", "--idle", "0.5")
    argv = [sys.executable, str(BENCHMARK), *short, "--json", str(figures)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(figures.read_text())

    assert [2, 5] == [row["nodes"] for row in found]
    for row in found:
        assert [1, 2] == [len(row["ours"][f"{name}_ms"]) for name in ("first", "again")]
        assert [1, 2] == [len(row["floor"][f"{name}_ms"]) for name in ("first", "again")]
        assert 4 == int(row["round_messages"])
        assert row["rss_mb"] > 0
