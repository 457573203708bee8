"""The benchmarks of barriers, key-value work and process groups: one short run of everything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
STORES = {"Rallypoint", "etcd", "etcd without fsync", "TCPStore", "bare grpc.aio"}
CALLS = {"put", "get", "add", "16 puts"}
LIMIT_S = 240


def run(script: str, *flags: str) -> str:
    """Run a benchmark to its end; return its output."""
    argv = [sys.executable, str(BENCHMARKS / script), "--quick", *flags]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_key_value_is_measured_beside_every_store(tmp_path: Path) -> None:
    """Each store answers each kind of call, and a job beside the calls comes back from failures."""
    figures = tmp_path / "figures.json"
    run("key_value.py", "--json", str(figures))
    found = json.loads(figures.read_text())
    rates = {
        (series["store"], series["op"], series["clients"]): series["rates"]
        for series in found["series"]
    }
    (isolation,) = found["isolation"]

    assert set(rates) == {(store, op, n) for store in STORES for op in CALLS for n in (1, 8)}
    assert all(rate > 0 for (rate,) in rates.values())
    assert [len(isolation[f"{arm}_ms"]) for arm in ("alone", "beside", "elsewhere")] == [2] * 3
    assert isolation["beside_beats_ms"]


@pytest.mark.long
def test_barriers_are_measured_beside_torch() -> None:
    """Releases, failures that are known by name, and the rate of small barriers."""
    shown = run("barriers.py")

    for row in ("8 workers, torch over TCPStore", "a worker of 64 fails", "a node of a worker"):
        assert f"\n| {row}" in shown
    assert "barriers of 8 workers a minute" in shown


@pytest.mark.long
def test_process_groups_are_made_over_every_store() -> None:
    """Ours, and a TCPStore in rank 0 or in the agent."""
    shown = run("groups/process_groups.py")

    assert (
        "| ranks | TCPStore in rank 0, ms | TCPStore of the agent, ms | Rallypoint, ms |" in shown
    )
    assert "\n| 2 | " in shown
