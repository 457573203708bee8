"""The FIFO for timers: what its lines mean, where it is, and how long it exists."""

import os
from pathlib import Path

import pytest

from rallypoint.agent.torchelastic.timers import (
    Request,
    TimerFile,
    TimerFileRefused,
    parse_request,
    timer_file,
)
from support.torchrun.timers import line


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        (line(7, 12.5, "a b", 9), Request(7, "a b", 12.5, 9)),
        (line(7, -1, "a", 0), Request(7, "a", -1.0, 0)),
        (line(7, 12, "", -3), Request(7, "", 12.0, -3)),
        (b'{"pid":7,"scope_id":"s","expiration_time":1,"signal":9}', Request(7, "s", 1.0, 9)),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[1, 2]", None),
        (b"[" * 4_000, None),
        (b'{"pid": 7}', None),
        (line(1, 12.5), None),
        (line(7, float("nan")), None),
        (line(7, 10**400), None),
        (line(7, 12.5, "a", 65), None),
        (line(7, 12.5).replace(b"7", b'"7"'), None),
    ],
)
def test_request_of_a_client(text: bytes, request_: Request | None) -> None:
    """A line holds a request of torch's client, or none."""
    assert parse_request(text) == request_


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, "/own/timers"),
        ({"TORCHELASTIC_TIMER_FILE": ""}, "/own/timers"),
        ({"TORCHELASTIC_TIMER_FILE": "/x/f"}, "/x/f"),
        (
            {"TORCHELASTIC_TIMER_FILE": "/x/f", "TORCHELASTIC_RUN_ID": "around"},
            "/own/timers",
        ),
    ],
)
def test_where_timers_are(environment: dict[str, str], path: str) -> None:
    """The FIFO is where the operator says, or in the agent's own folder.

    An agent inside a worker does not use the FIFO of the launcher around it.
    """
    assert timer_file(environment, lambda: Path("/own")) == path


def test_no_folder_for_timers_is_an_error() -> None:
    """Without a folder for temporary files the FIFO is refused, with the reason."""

    def folder() -> Path:
        raise FileNotFoundError(2, "No usable temporary directory found in []")

    with pytest.raises(TimerFileRefused, match="No usable temporary directory"):
        timer_file({}, folder)


def test_fifo_exists_while_it_is_open(tmp_path: Path) -> None:
    """Only its user has access; a FIFO without a reader is replaced; close removes it."""
    path = tmp_path / "timers"
    os.mkfifo(path, 0o644)
    file = TimerFile(str(path))

    assert (path.is_fifo(), path.stat().st_mode & 0o777) == (True, 0o600)
    with pytest.raises(TimerFileRefused, match="in use"):
        TimerFile(str(path))
    file.close()
    assert not path.exists()


def test_file_of_another_kind_is_kept(tmp_path: Path) -> None:
    """A file that is no FIFO is neither replaced nor removed."""
    path = tmp_path / "timers"
    path.write_text("mine")
    with pytest.raises(TimerFileRefused, match=r"TIMER_FILE=.*/timers: it exists and is no FIFO"):
        TimerFile(str(path))
    with pytest.raises(TimerFileRefused, match="No such file or directory"):
        TimerFile(str(tmp_path / "nowhere" / "timers"))
    path.rename(tmp_path / "kept")
    file = TimerFile(str(path))
    path.unlink()
    path.write_text("later")
    file.close()

    assert path.read_text() == "later"
