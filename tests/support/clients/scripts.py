"""Programs of workers, each run in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

LIMIT_S = 30


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter, outside of a worker."""
    kept = {name: value for name, value in os.environ.items() if name[:10] != "RALLYPOINT"}
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def run_worker(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program as the worker that the environment of the test describes."""
    return run(program, **{name: os.environ[name] for name in os.environ if "RALLY" in name})
