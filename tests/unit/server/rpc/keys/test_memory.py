"""What keys cost the journal in memory."""

from __future__ import annotations

import pytest

from rallypoint.server.core.keyspace import keyspace
from rallypoint.server.core.keyspace.values import Write
from rallypoint.server.core.messages.inputs import Claim, WriteKeys
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.reads.weights import weight_of
from rallypoint.server.journal import compaction
from support.core.shell import Shell, running_shell

JOB = JobId("job")


async def put(shell: Shell, number: int, bytes: int) -> None:
    writes = (Write(f"k{number % 2}", value=b"x" * bytes),)
    claim = Claim(JOB, 1, 1, "t", is_signed=True)
    request = WriteKeys(claim, 1, writes, request_id=f"r{number}", answer_id=f"a{number}")
    await shell.coordinator.ask(request, lambda state, now_ms: None)


async def test_large_values_are_compacted_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is bounded by what its records hold, not only by their number."""
    monkeypatch.setattr(compaction, "COMPACT_ABOVE", 100_000)
    monkeypatch.setattr(keyspace, "CHANGES_BYTES_MAX", 30_000)
    async with running_shell() as shell:
        await shell.join(JOB, 1)
        for number in range(100):
            await put(shell, number, 10_000)
        records = (await shell.journal.load()).records
        weight = sum(map(weight_of, records))
        space = shell.state.keys[JOB]
        assert space.bytes < 21_000
        assert weight < 100_000 + 2 * space.weight < 400_000, "of a million in all"
