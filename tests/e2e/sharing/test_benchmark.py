"""The benchmark of key-value works: one short run of everything."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KEY_VALUE = Path(__file__).parents[3] / "benchmarks" / "key_value.py"
STORES = {"Rallypoint", "etcd", "etcd without fsync", "TCPStore", "bare grpc.aio"}
CALLS = {"put", "get", "add", "16 puts"}
LIMIT_S = 240


@pytest.mark.long
def test_benchmark_measures_every_store(tmp_path: Path) -> None:
    """Each store answers each kind of call, and a job beside the calls comes back from failures."""
    figures = tmp_path / "figures.json"
    argv = [sys.executable, str(KEY_VALUE), "--quick", "--json", str(figures)]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    rates = {
        (series["store"], series["op"], series["clients"]): series["rates"]
        for series in found["series"]
    }
    (isolation,) = found["isolation"]

    assert set(rates) == {(store, op, n) for store in STORES for op in CALLS for n in (1, 8)}
    assert all(rate > 0 for (rate,) in rates.values())
    assert len(isolation["alone_ms"]) == len(isolation["beside_ms"]) == 2
    assert isolation["beside_beats_ms"]
