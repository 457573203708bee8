"""The soak, bounded: 8 agents for 60 seconds. `make soak` runs 32 for half an hour.

By far the longest test there is, on purpose: what it looks for is rare.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes.commands import run_program

SOAK = Path(__file__).parents[3] / "benchmarks" / "soak.py"
LIMIT_S = 150


def soak(*flags: str) -> subprocess.CompletedProcess[str]:
    """Run the soak to its end."""
    return run_program([sys.executable, SOAK, *flags], LIMIT_S)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 30)
def test_nobody_who_stands_still_for_a_second_is_called_dead() -> None:
    """Agents and coordinator stop for up to 1 s, again and again: the job does not notice."""
    done = soak("--agents=8", "--seconds=60")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "nodes lost: 0, rounds: 1, streams broken: 0" in done.stdout
    assert done.stdout.endswith("0 false deaths\n")


@pytest.mark.long
def test_soak_notices_a_death() -> None:
    """With stops that outlast the lease it ends at once, and says what the job did."""
    done = soak("--agents=2", "--seconds=60", "--longest-stop=10")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "FALSE DEATH: the worker of rank" in done.stdout
