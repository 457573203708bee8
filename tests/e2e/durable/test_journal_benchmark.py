"""The benchmark of journals: one short run of everything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "journal.py"
LIMIT_S = 240
SHORT = ("--nodes", "8", "--runs", "1", "--rounds", "2", "--idle", "0.5")
FLEET = ("--fleet", "0.5", "--fleet-runs", "1", "--long-rounds", "20")


@pytest.mark.long
@pytest.mark.timeout(LIMIT_S + 20)
def test_every_store_is_measured(tmp_path: Path) -> None:
    """Rounds with each store, fleets on one to three coordinators, and a start from the file."""
    figures = tmp_path / "figures.json"
    argv = [sys.executable, str(BENCHMARK), *SHORT, *FLEET, "--json", str(figures)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    found = json.loads(figures.read_text())
    appends = {cost["store"]: cost["appends"][0] for cost in found["costs"]}

    assert appends["memory"] == 0
    assert appends["sqlite"] > 0
    assert appends["etcd"] > 0
    assert [(fleet["store"], fleet["coordinators"]) for fleet in found["fleets"]] == [
        *(("memory", 1), ("sqlite", 1)),
        *(("etcd", 1), ("etcd", 2), ("etcd", 3)),
    ]
    assert all(fleet["rounds_per_s"][0] > 0 for fleet in found["fleets"])
    assert len(found["long"]["round_ms"]) == 20
    assert done.returncode == 0 or "MISSED: a start takes" in done.stdout  # the machine was busy
