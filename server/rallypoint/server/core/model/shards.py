"""Which shard a job belongs to.

The number must be the same in every version and language for ever: the journal of a job lies in its
shard. So it is FNV-1a with 64 bits over the id in UTF-8, mixed as in MurmurHash3, because FNV's low
bits follow the last characters of names such as `job-1`, then taken modulo the number of shards.

Sources: http://www.isthe.com/chongo/tech/comp/fnv/ and fmix64 of MurmurHash3.cpp.
"""

from __future__ import annotations

SHARDS_DEFAULT = 16
SHARDS_MAX = 1_024
"""Each shard has its own journal and state; a coordinator owns about its share of them."""
_MASK = (1 << 64) - 1


def shard_of(job_id: str, count: int) -> int:
    """Return the shard of a job: 0 up to, but not including, `count`.

    Args:
        job_id: the id as the agents write it.
        count: number of shards of the store, 1 to SHARDS_MAX; fixed for ever.
    """
    mixed = 0xCBF29CE484222325
    for byte in job_id.encode():
        mixed = (mixed ^ byte) * 0x100000001B3 & _MASK
    mixed = (mixed ^ mixed >> 33) * 0xFF51AFD7ED558CCD & _MASK
    mixed = (mixed ^ mixed >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return (mixed ^ mixed >> 33) % count
