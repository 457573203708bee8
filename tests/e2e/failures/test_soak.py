"""The soak, bounded: 8 agents for 60 seconds. `make soak` runs 32 for half an hour.

By far the longest test there is, on purpose: what it looks for is rare.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.commands import run_program

SOAK = Path(__file__).parents[3] / "benchmarks" / "soak.py"
LIMIT_S = 150


def soak(folder: Path, *flags: str) -> tuple[subprocess.CompletedProcess[str], dict[str, float]]:
    """Run the soak to its end; return what it printed, and what it has counted."""
    path = folder / "results.json"
    done = run_program([sys.executable, SOAK, "--json", path, *flags], LIMIT_S)
    cells = json.loads(path.read_text())["cells"]
    return done, {cell["column"]: cell["samples"][0] for cell in cells}


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_nobody_who_stands_still_for_a_second_is_called_dead(tmp_path: Path) -> None:
    """Agents and coordinator stop for up to 1 s, again and again: the job does not notice."""
    done, counts = soak(tmp_path, "--agents=8", "--seconds=60")

    assert done.returncode == 0, done.stdout + done.stderr
    assert counts["nodes lost"] == counts["streams broken"] == 0
    assert (counts["rounds"], counts["stops"] > 0) == (1, True)


@pytest.mark.long
def test_soak_notices_a_death(tmp_path: Path) -> None:
    """With stops that outlast the lease it ends at once, and says what the job did."""
    done, _ = soak(tmp_path, "--agents=2", "--seconds=60", "--longest-stop=10")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FALSE DEATH: the worker of rank" in done.stdout
