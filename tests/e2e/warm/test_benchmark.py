"""The benchmark of recoveries: one short run of the parts that need no other launcher."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "recovery.py"
LIMIT_S = 580


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_recoveries_are_measured(tmp_path: Path) -> None:
    """Workers and agents are killed, warm and cold, and standbys are weighed."""
    figures = tmp_path / "figures.json"
    argv = [sys.executable, str(BENCHMARK), "--launchers", "warm", "cold", "--repeats", "1"]
    argv += ["--turns", "1", "--only", "worker", "agent", "memory", "--sizes", "1"]
    argv += ["--json", str(figures)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())

    assert [(one["launcher"], one["loss"]) for one in found["series"]] == [
        (launcher, loss)
        for loss in ("worker", "agent")
        for launcher in ("Rallypoint, warm", "Rallypoint, cold")
    ]
    assert all(len(one["main_s"]) == len(one["reduced_s"]) == 1 for one in found["series"])
    assert all(0 < one["main_s"][0] <= one["reduced_s"][0] for one in found["series"])
    (memory,) = found["memory"]
    assert memory["standbys_mb"] > 0
    assert memory["with_standbys_mb"] > memory["without_mb"]
