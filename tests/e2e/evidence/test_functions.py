"""Functions are armed like programs, however they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os
from rallypoint.elastic import LaunchConfig, elastic_launch

def list_armed():
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    names = [name for name in os.environ if name in ("PYTHONPATH", "RALLYPOINT_ARMED")]
    return [os.path.basename(link) for link in links if link.endswith(".stacks")], names

if __name__ == "__main__":
    import sys
    config = LaunchConfig(1, 1, 1, start_method=sys.argv[1], evidence=sys.argv[2])
    print(elastic_launch(config, list_armed)())
"""


@pytest.mark.parametrize(
    ("method", "evidence", "expected"),
    [
        ("spawn", "full", ["w.stacks"]),
        ("fork", "full", ["w.stacks"]),
        ("forkserver", "full", ["w.stacks"]),
        ("spawn", "signals", []),
    ],
)
def test_function(tmp_path: Path, method: str, evidence: str, expected: list[str]) -> None:
    """It has the file open, and finds nothing of that in its environment."""
    script = tmp_path / "launch.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), method, evidence],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    assert f"{{0: ({expected}, [])}}" in done.stdout
