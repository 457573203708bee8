"""All agents of a large job come in the same instant: each is served at once, none is ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.commands import run_program

STORM = Path(__file__).parents[3] / "benchmarks" / "storm.py"
LIMIT_S = 240


def storm(folder: Path, *argv: str) -> Any:
    """Return what has become of all agents of a storm."""
    results = folder / "results.json"
    done = run_program([sys.executable, STORM, *argv, "--json", results], LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(results.read_text())["cases"][0]


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_every_agent_of_a_storm_is_welcome_at_its_first_try(tmp_path: Path) -> None:
    """4,096 sessions reach the coordinator at once; no stream ends, least of all as CANCELLED."""
    figures = storm(tmp_path, "--nodes=4096")

    assert (figures["first_ends"], figures["held"]) == ({}, 4_096)


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_simulated_agents_keep_their_round(tmp_path: Path) -> None:
    """As real ones do, they come back when the coordinator is killed, and say what they hold."""
    figures = storm(tmp_path, "--nodes=64", "--restart")

    assert figures["held"] == 64
    assert sum(figures["ends"].values()) >= 64
    assert "CANCELLED" not in figures["ends"]
