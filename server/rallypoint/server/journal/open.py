"""Opens the journal that a coordinator was started with: `--state`."""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from pathlib import Path

from rallypoint.server.journal.interface import Journal, JournalFailed
from rallypoint.server.journal.memory import MemoryJournal
from rallypoint.server.journal.sqlite.journal import SqliteJournal

MEMORY = "memory"
SQLITE = "sqlite:"
_IDENTITY_BYTES = 16


def open_journal(state: str, port: int) -> Journal:
    """Open a journal, or make a new one.

    Args:
        state: `memory`, `sqlite:PATH`, or empty for the default.
        port: the port to listen on; it names the default's folder. 0 has none: memory.

    Raises:
        JournalInUse: when another coordinator has it open.
        JournalFailed: when it cannot be opened.
    """
    if state == MEMORY or (not state and port == 0):
        return MemoryJournal(secrets.token_hex(_IDENTITY_BYTES))
    # A shell leaves the `~` of `--state sqlite:~/journal.sqlite` as it is.
    path = Path(os.path.expanduser(state.removeprefix(SQLITE))) if state else default_path(port)
    return SqliteJournal.open(path)


def require_etcd_client() -> None:
    """Check that the client of etcd, an extra, is installed.

    Raises:
        JournalFailed: when it is not.
    """
    if find_spec("aetcd") is None:
        raise JournalFailed("a journal in etcd needs the package aetcd: pip install aetcd")


def describe_journal(journal: Journal) -> str:
    """Return where a journal is kept, as `--state` takes it."""
    return f"{SQLITE}{journal.path}" if isinstance(journal, SqliteJournal) else MEMORY


def default_path(port: int) -> Path:
    """Return where a coordinator on this port keeps its journal, unless its user chose a place.

    Raises:
        JournalFailed: when the user has no home.
    """
    # The specification of XDG ignores relative paths.
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".local" / "state"
        except RuntimeError as error:
            text = "no home folder for the journal; choose a file with --state sqlite:PATH"
            raise JournalFailed(text) from error
    return folder / "rallypoint" / f"coordinator-{port}" / "journal.sqlite"
