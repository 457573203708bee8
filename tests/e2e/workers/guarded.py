"""A worker that meets the others with what its environment has, and writes that down."""

import os
import sys


def meet() -> int:
    """Wait for all workers, and return their number."""
    name = os.environ["RALLYPOINT_NODE"]
    if "RALLYPOINT_NOTICE_FILE" in os.environ:
        from rallypoint import worker

        return len(worker.all_gather(name.encode()))
    from rallypoint.torch.store.store import Store  # of torchrun: it writes no notices

    count = int(os.environ["WORLD_SIZE"])
    store = Store.from_environment()
    store.set(f"met/{os.environ['RANK']}", name)
    store.wait([f"met/{rank}" for rank in range(count)])
    return count


met = meet()
with open(sys.argv[1], "w", encoding="utf-8") as file:
    print(met, file=file)
    for name in sorted(os.environ):
        print(name, file=file)
