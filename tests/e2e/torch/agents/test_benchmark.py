"""The benchmark of rendezvous handlers: one short run of its parts that need no loss."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[4] / "benchmarks" / "rendezvous.py"
LIMIT_S = 240


@pytest.mark.long
def test_handlers_are_measured_beside_c10d(tmp_path: Path) -> None:
    """Both back ends meet, as processes and as threads."""
    figures = tmp_path / "figures.json"
    argv = [sys.executable, str(BENCHMARK), "--only", "joins", "threads", "--nodes", "2,3"]
    argv += ["--repeats", "1", "--json", str(figures)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())["series"]

    assert [(each["part"], each["nodes"]) for each in found] == [
        (part, nodes) for part in ("joins", "threads") for nodes in (2, 3)
    ]
    assert all(each["ours"] and each["theirs"] and not each["late"] for each in found)
