"""A worker: rank 0 of two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.worker import session as sessions
from support.clients.scripted import calling


@pytest.fixture
def notice_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be rank 0 of two; the coordinator is not set."""
    path = tmp_path / "notices.json"
    variables = {
        "RALLYPOINT_JOB_ID": "j",
        "RALLYPOINT_WORKER_TOKEN": "secret",
        "RALLYPOINT_EPOCH": "7",
        "RALLYPOINT_NOTICE_FILE": str(path),
        "RALLYPOINT_COORDINATOR": "127.0.0.1:1",
        "RANK": "0",
        "WORLD_SIZE": "2",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return path


@pytest.fixture
def clean_session() -> Iterator[None]:
    yield
    session = sessions._sessions.pop(os.getpid(), None)
    if session is not None:
        session.disconnect()


@pytest.fixture
async def at(notice_file: Path, monkeypatch: pytest.MonkeyPatch, clean_session: None) -> Any:
    """A scripted coordinator, which the functions use."""
    async with calling("sync") as caller:
        monkeypatch.setenv("RALLYPOINT_COORDINATOR", caller.target)
        yield caller
