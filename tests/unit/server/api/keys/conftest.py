"""Revisions begin at 0 here, so that tests can name them."""

from __future__ import annotations

import pytest

from rallypoint.server.core.model import keyspace


@pytest.fixture(autouse=True)
def _small_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "REVISIONS_PER_EPOCH", 0)
