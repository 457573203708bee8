"""Which shard a job belongs to: the same number for ever, and about as many jobs in each."""

from __future__ import annotations

from collections import Counter

import pytest

from rallypoint.server.core.model.shards import shard_of

VECTORS = {
    "": (6, 294, 17280346270528514342),
    "a": (11, 603, 9413272369427828315),
    "job": (0, 848, 6209361342660261712),
    "job-1": (5, 533, 10002886561589914133),
    "job-2": (2, 178, 13882329704639798450),
    "train-llama-70b": (9, 585, 12594724992294538825),
    "größe": (1, 673, 3366605602710743713),
}
"""Shards of 16, of 1,024 and of 2^64. A change of one would lose the jobs of every store."""


@pytest.mark.parametrize("job_id", VECTORS)
def test_shards_never_change(job_id: str) -> None:
    assert VECTORS[job_id] == tuple(shard_of(job_id, count) for count in (16, 1024, 1 << 64))


@pytest.mark.parametrize("name", ["job-{}", "{}.0", "node:{}", "x{}" + "y" * 200])
@pytest.mark.parametrize("count", [1, 3, 16, 100])
def test_shards_have_about_as_many_jobs(name: str, count: int) -> None:
    """Also with names that differ only in a number: no shard has half as much again as its part."""
    shares = Counter(shard_of(name.format(number), count) for number in range(200 * count))

    assert set(range(count)) == set(shares)
    assert max(shares.values()) < 300
