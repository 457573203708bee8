"""The scheduler's error file, where the machine has no thread to write it."""

from __future__ import annotations

import threading

import pytest
import structlog

from rallypoint.base.file_thread import FileThread
from rallypoint.cli.report.reports import Reports


def test_end_is_reported_without_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line for a person is printed, and the log says why the file is missing."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    printed: list[str] = []
    files = FileThread("report")
    reports = Reports(printed.append, "rallypoint agent", "train.py", "head:7", "/e.json", files)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with structlog.testing.capture_logs() as lines:
        reports.ended(70, "a bug", always_print=False)

    assert printed == ["rallypoint agent: a bug"]
    assert [(line["event"], line["path"]) for line in lines] == [
        ("error_file_not_written", "/e.json")
    ]
    assert "can't start new thread" in lines[0]["why"]
