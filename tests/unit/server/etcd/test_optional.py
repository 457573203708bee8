"""The extra is optional: without it, everything else works, and a line says what to install."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["aetcd"] = None  # as if it were not installed
import rallypoint.server.serve
from rallypoint.cli.commands.coordinator import main
from rallypoint.server.journal.open import open_journal
print(type(open_journal("memory", 0)).__name__)
sys.exit(main("coordinator", ["--state=etcd://h:2379/p", "--host=127.0.0.1", "--port=0"]))
"""


def test_without_the_client_of_etcd() -> None:
    """A coordinator with another store starts; one on etcd ends with one line."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    lines = done.stderr.splitlines()

    assert (done.returncode, done.stdout, len(lines)) == (1, "MemoryJournal\n", 1), done
    assert "pip install aetcd" in lines[0]
