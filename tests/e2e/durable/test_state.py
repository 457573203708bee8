"""`coordinator --state`: where the journal lies, and every way in which it cannot be used."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.processes.commands import COORDINATOR
from support.processes.world import NEW, World

MESSAGE_CHARS = 160
"""Of a line, without the path in it."""


def refused(world: World, state: Path | str, code: int = 1) -> str:
    """Start a coordinator that cannot use its journal; return its one line, without the path."""
    flag = state if isinstance(state, str) else f"--state=sqlite:{state}"
    ended = world.run(COORDINATOR, "--host=127.0.0.1", "--port=0", flag)
    lines = ended.stderr.splitlines()
    assert (code, "", 1) == (ended.returncode, ended.stdout, len(lines)), ended
    text = lines[0].removeprefix("coordinator: error: ").replace(str(state), "PATH")
    assert len(text) < MESSAGE_CHARS
    return text


def test_default_is_a_file_for_each_port(world: World) -> None:
    """It lies in the user's state folder, and the log says so."""
    port = world.ports.reserve()
    argv = [COORDINATOR, "--host=127.0.0.1", f"--port={port}", *NEW]
    path = world.folder / "state" / "rallypoint" / f"coordinator-{port}" / "journal.sqlite"
    for records in ([], [2]):  # the epoch, and how far apart the clocks are
        coordinator = world.start("coordinator", argv)
        started = coordinator.wait_event("coordinator_started")
        loaded = coordinator.events("journal_loaded")
        coordinator.signal(signal.SIGTERM)

        assert (0, f"sqlite:{path}") == (coordinator.wait(), started["state"])
        assert records == [event["records"] for event in loaded]
    assert not path.with_name("journal.sqlite-wal").exists(), "SIGTERM leaves one whole file"


def test_any_port_means_memory(world: World) -> None:
    """`--port 0` leaves no file behind, nor does a built-in coordinator."""
    coordinator = world.start("coordinator", [COORDINATOR, "--host=127.0.0.1", "--port=0"])
    started = coordinator.wait_event("coordinator_started")
    coordinator.signal(signal.SIGTERM)

    assert (0, "memory") == (coordinator.wait(), started["state"])
    assert not (world.folder / "state").exists()


def test_second_coordinator_on_one_file(world: World, tmp_path: Path) -> None:
    """It ends at once with 2, and names the process that has the file; the first one lives."""
    path = tmp_path / "journal.sqlite"
    first = world.coordinator(0, f"--state=sqlite:{path}", *NEW)

    text = refused(world, path, code=2)
    assert f"PATH: another coordinator with process id {first.pid} uses this journal" in text
    assert text.endswith("end it, or choose another file (sqlite:PATH)")
    assert first.is_running()


@pytest.mark.parametrize("place", ["journal.sqlite", "sqlite:", "redis://a", "Memory"])
def test_places_that_are_none(world: World, place: str) -> None:
    """A place of no known kind is a mistake on the command line."""
    ended = world.run(COORDINATOR, "--port=0", f"--state={place}")

    assert 2 == ended.returncode
    assert f"{place!r} is not memory, sqlite:PATH or etcd://HOST:PORT/PREFIX" in ended.stderr
