"""The names that a worker notes for a forkserver: those that it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rallypoint.agent.in_worker import PRELOAD
from rallypoint.agent.preload.command import RECORD_ENV

PROGRAM = """
import importlib.util, sys
assert importlib.util.find_spec("wave")
import colorsys
if importlib.util.find_spec("xml.dom.minidom"):
    import chunk_of_nowhere
"""


def test_module_that_is_only_looked_for_is_not_noted(tmp_path: Path) -> None:
    """Libraries ask which others are installed, and import few of them."""
    record = tmp_path / "record"
    record.touch()
    environ = {**os.environ, "PYTHONPATH": PRELOAD, RECORD_ENV: str(record)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, check=False)
    names = set(record.read_text().split())

    assert names & {"wave", "xml.dom.minidom"} == set()
    assert {"colorsys", "xml.dom", "chunk_of_nowhere"} <= names
