"""What members of etcd tell about themselves."""

from __future__ import annotations

import pytest

from rallypoint.server.etcd.survey import find_lossy, is_lossy
from support.etcd.clients import Connect
from support.etcd.cluster import Cluster


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("3.4.0", False),
        ("3.4.35", False),
        ("3.5.0", True),
        ("3.5.1", True),
        ("3.5.5", True),
        ("3.5.5-rc.0", True),
        ("3.5.6", False),
        ("3.5.10", False),
        ("3.5.21", False),
        ("3.6.1", False),
        ("13.5.1", False),
        ("", False),
    ],
)
def test_versions_that_lose_writes(version: str, *, expected: bool) -> None:
    """Those before 3.5.6, but not those of 3.4."""
    assert is_lossy(version) is expected


async def test_members_that_lose_writes_are_named(
    etcd: Cluster, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their version, and what to use instead."""
    client = connect(etcd)
    monkeypatch.setattr("rallypoint.server.etcd.survey.is_lossy", bool)
    text = await find_lossy(client)
    monkeypatch.setattr("rallypoint.server.etcd.survey.is_lossy", lambda _: False)

    assert text.startswith("etcd 3.") and etcd.endpoints[0] in text
    assert "use 3.4, or 3.5.6 and newer" in text
    assert "" == await find_lossy(client)
