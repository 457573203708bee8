"""The benchmark of recoveries: one short run of the parts that need no other launcher."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "recovery.py"
LIMIT_S = 400
"""For both runs at once, beside another test: an idle machine takes a minute."""


def begin(figures: Path, launcher: str, *parts: str) -> subprocess.Popen[str]:
    """Measure these parts once, with one worker on each node."""
    argv = [sys.executable, str(BENCHMARK), "--launchers", launcher, "--only", *parts]
    argv += ["--repeats", "1", "--turns", "1", "--workers", "1", "--sizes", "1"]
    argv += ["--json", str(figures)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=subprocess.STDOUT, text=True)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_recoveries_are_measured(tmp_path: Path) -> None:
    """Workers and agents are killed, warm and cold, and standbys are weighed."""
    warm, cold = tmp_path / "warm.json", tmp_path / "cold.json"
    with ExitStack() as stack:
        runs = [begin(warm, "warm", "worker", "agent"), begin(cold, "cold", "worker", "memory")]
        for run in runs:
            stack.enter_context(run)
            stack.callback(run.terminate)
        for run in runs:
            printed, _ = run.communicate(timeout=LIMIT_S)
            assert run.returncode == 0, printed
    found = [json.loads(figures.read_text()) for figures in (warm, cold)]
    series = [one for figures in found for one in figures["series"]]

    assert [(one["launcher"], one["loss"]) for one in series] == [
        ("Rallypoint, warm", "worker"),
        ("Rallypoint, warm", "agent"),
        ("Rallypoint, cold", "worker"),
    ]
    assert all(len(one["main_s"]) == len(one["reduced_s"]) == 1 for one in series)
    assert all(0 < one["main_s"][0] <= one["reduced_s"][0] for one in series)
    (memory,) = found[1]["memory"]
    assert memory["standbys_mb"] > 0
    assert memory["with_standbys_mb"] > memory["without_mb"]
