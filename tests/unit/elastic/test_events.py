"""Events and their handlers: torch's values, handlers by name, and plug-ins that fail."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.base.log import format_value
from rallypoint.elastic import events
from rallypoint.elastic.events import GROUPS
from support.machines.event_handlers import install

START = events.Event(
    "torchelastic.worker.status.START", events.EventSource.WORKER, 5, {"run_id": "job", "rank": 1}
)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget handlers, plug-ins and failures of other tests."""
    monkeypatch.delenv("LOGLEVEL", raising=False)
    monkeypatch.setattr(events, "_registered", {})
    monkeypatch.setattr(events, "_plugins", {})
    monkeypatch.setattr(events, "_failed", set())
    yield


def test_event_is_one_line_of_json() -> None:
    """It survives the way through its JSON, and prints as it."""
    assert events.Event.deserialize(START.serialize()) == START
    assert events.Event.deserialize(START) is START
    assert json.loads(str(START)) == {
        "name": "torchelastic.worker.status.START",
        "source": "WORKER",
        "timestamp": 5,
        "metadata": {"run_id": "job", "rank": 1},
    }
    with pytest.raises(KeyError, match="ROBOT"):
        events.Event.deserialize('{"name": "x", "source": "ROBOT"}')


def test_handlers_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The console writes to standard error; null writes nothing; a program adds handlers."""
    mine = Lines()
    events.register_handler("mine", mine)
    for destination in ("console", "null", "mine"):
        events.record(START, destination)
    events.record(START)

    assert capsys.readouterr() == ("", f"{START}\n")
    assert mine.lines == [str(START)]
    later = Lines()
    events.register_handler("mine", later)
    events.record(START, "mine")
    assert (len(mine.lines), len(later.lines)) == (1, 1)


def test_unknown_name_is_refused() -> None:
    """The error is torch's KeyError, and its text lists the names."""
    with pytest.raises(KeyError) as error:
        events.record(START, "scuba")

    assert str(error.value) == (
        "no event handler is named 'scuba'; known: console, dynamic_rendezvous, null"
    )


def test_registration_is_checked() -> None:
    """A built-in name is taken, and a handler is a logging.Handler."""
    with pytest.raises(ValueError, match="built in"):
        events.register_handler("console", Lines())
    with pytest.raises(TypeError, match=r"logging\.Handler"):
        events.register_handler("mine", print)  # type: ignore[arg-type]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("attribute", ["Handler", "instance", "make"])
def test_plugin_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, attribute: str
) -> None:
    """A class, a handler or a function, in our group and in torch's."""
    install(tmp_path, group, here=f"hooks_here:{attribute}")
    monkeypatch.syspath_prepend(tmp_path)
    found = events.get_logging_handler("here")
    found.lines = []  # type: ignore[attr-defined]
    events.record(START, "here")

    assert "here" in events.list_handlers()
    assert found.lines == [str(START)]  # type: ignore[attr-defined]
    assert events.get_logging_handler("here") is found


def test_our_group_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over torch's; and what a program registers wins over both."""
    install(tmp_path, GROUPS[1], here="hooks_here:leave")
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, GROUPS[0], here="hooks_here:instance")
    monkeypatch.syspath_prepend(tmp_path)

    assert type(events.get_logging_handler("here")).__name__ == "Handler"
    mine = Lines()
    events.register_handler("here", mine)
    assert events.get_logging_handler("here") is mine


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("hooks_absent:Handler", "ModuleNotFoundError: No module named 'hooks_absent'"),
        ("hooks_here:absent", "AttributeError: module 'hooks_here' has no attribute 'absent'"),
        ("hooks_here:leave", "SystemExit: 3"),
        ("hooks_here:nothing", "TypeError: 'NoneType' object is not callable"),
        ("hooks_here:make_text", "it is str, not a logging.Handler"),
    ],
)
def test_broken_plugin_is_reported_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: str,
    why: str,
) -> None:
    """One warning names the plug-in and what is wrong; its events are dropped."""
    install(tmp_path, GROUPS[0], here=source)
    monkeypatch.syspath_prepend(tmp_path)
    events.record(START, "here")
    events.record(START, "here")

    (line,) = caplog.messages
    named = f"warning event_handler_not_loaded handler=here source={source} why="
    assert line.startswith(f"{named}{format_value(why)} then=")


@pytest.mark.parametrize("attribute", ["Failing", "Polite"])
def test_failing_handler_stops_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    attribute: str,
) -> None:
    """Its first failure is reported, once, and the caller continues."""
    install(tmp_path, GROUPS[0], here=f"hooks_here:{attribute}")
    monkeypatch.syspath_prepend(tmp_path)
    events.record(START, "here")
    events.record(START, "here")

    (line,) = caplog.messages
    assert line.startswith("warning event_handler_failed handler=here ")
    assert "error='OSError: no route to the log server'" in line


@pytest.mark.parametrize(("level", "count"), [("INFO", 1), ("WARNING", 0), ("LOUD", 1)])
def test_loglevel_is_torchs(monkeypatch: pytest.MonkeyPatch, level: str, count: int) -> None:
    """WARNING and higher turn events off; an invalid level does not."""
    monkeypatch.setenv("LOGLEVEL", level)
    mine = Lines()
    events.register_handler("mine", mine)
    events.record(START, "mine")

    assert len(mine.lines) == count
