"""The extra is optional: without it, everything else works, and a line says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.open import open_journal

PROGRAM = """
import sys
sys.modules["aetcd"] = None  # as if it were not installed
import rallypoint.cli.main, rallypoint.server.serve
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.journal.open import open_journal
print(type(open_journal("memory", 0)).__name__)
try:
    open_journal("etcd://h:2379/p", 0)
except JournalFailed as error:
    print(error)
"""


def test_without_the_client_of_etcd() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0] == "MemoryJournal"
    assert "pip install 'rallypoint[etcd]'" in lines[1]


@pytest.mark.parametrize(
    ("state", "part"),
    [
        ("etcd://h:2379/p", "no coordinators on etcd; use --state sqlite:PATH"),
        ("etcd://h:2379", "no prefix"),
    ],
)
def test_coordinator_on_etcd_is_refused(state: str, part: str) -> None:
    """The store is there; several coordinators are not yet."""
    with pytest.raises(JournalFailed, match=part) as caught:
        open_journal(state, 50051)

    assert "\n" not in str(caught.value)
