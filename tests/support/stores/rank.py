"""One of several processes that share a store, as `python rank.py HOW`; prints JSON.

`torch` uses the functions of torch, `ours` those of rallypoint.torch. The last rank does not come
to the second barrier.
"""

import json
import os
import sys
import time

from torch.distributed.elastic.utils import store as torchs

import rallypoint.torch as ours
from rallypoint.torch.store.failures import StoreError

FUNCTIONS = {"torch": torchs, "ours": ours}[sys.argv[1]]
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COORDINATOR = ours.Store.from_environment()


def barrier_error(prefix: str, **given: object) -> str:
    """Return how a barrier fails to which the last rank does not come."""
    if RANK == SIZE - 1:
        return ""
    try:
        FUNCTIONS.barrier(COORDINATOR, SIZE, prefix, 6, **given)
    except StoreError as error:
        return str(error)
    return "no error"


short = FUNCTIONS.synchronize(COORDINATOR, f"rank {RANK}", RANK, SIZE, "short/")
long = FUNCTIONS.synchronize(COORDINATOR, b"%d" % RANK * 100_000, RANK, SIZE, "long/")
COORDINATOR.set(f"all/{RANK}", f"{RANK}")
gathered = FUNCTIONS.get_all(COORDINATOR, RANK, "all/", SIZE)
if RANK == 0:
    time.sleep(0.2)  # the others must wait for it
    COORDINATOR.set("came last", "yes")
FUNCTIONS.barrier(COORDINATOR, SIZE, "together", 60, rank=RANK)
seen = COORDINATOR.check(["came last"])
traced = barrier_error("traced", rank=RANK, rank_tracing_decoder="host{}".format, trace_timeout=2)
named = barrier_error("named", rank=RANK, trace_timeout=2)
unnamed = barrier_error("unnamed")
print(
    json.dumps(
        {
            "short": [one.decode() for one in short],
            "long": [[len(one), one[:1].decode()] for one in long],
            "gathered": [one.decode() for one in gathered],
            "seen": seen,
            "traced": traced,
            "named": named,
            "unnamed": unnamed,
        }
    )
)
