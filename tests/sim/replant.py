"""Plant every bug, and find a seed that notices it: `make replant`.

`noticed.json` has the seeds with which the hunt for a bug begins. A change of what seeds draw may
move them; this finds them again. A bug that no seed notices makes it fail, and names the bug.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

if __package__ in (None, ""):
    sys.path[0] = str(Path(__file__).parents[1])

from sim.durable.owner_bugs import OWNER_OPTIONS
from sim.hangs.bugs import HANG_BUGS
from sim.relays import bugs as of_relays
from sim.relays.world import RelayedWorld
from sim.seeds import bugs as of_cores
from sim.seeds import campaign
from sim.seeds.campaign import Result
from sim.seeds.durable_bugs import DURABLE_OPTIONS
from sim.seeds.key_bugs import KEY_BUGS
from sim.seeds.meeting_bugs import MEETING_BUGS
from sim.seeds.operation_bugs import OPERATION_BUGS
from sim.seeds.planting import Bug, planted
from sim.shells import bugs as of_shells
from sim.shells import seed as shells
from sim.shells.culprits import CulpritWorld
from sim.shells.world import World

NOTICED = Path(__file__).parent / "seeds" / "noticed.json"
NEAR = 10
"""A hunt tries so many seeds from the known one on, or from 0 on."""
HUNT = range(600)
"""Then it tries these."""
OPTIONS = {
    **{name: {"hangs": "1"} for name in HANG_BUGS},
    "confirm too much": {
        "kinds": "partition,freeze_agent",
        "features": "fence",
        "every_ms": "1200",
    },
    "count a prompted exit as success": {"features": "late_nodes", "graceful_percent": "60"},
    "dismiss no agent for good": {"features": "other_flags"},
    "forget a drain": {"kinds": "drain"},
    "forget connection numbers": {"kinds": "sever"},
    "judge a node by a stale lease": {"kinds": "partition", "features": "fence"},
    "take a stall for deaths": {"kinds": "stall"},
    "believe what was": {"kinds": "partition,sever", "every_ms": "1200", "hangs": "1"},
    "forget what workers reached": {"durable": "1", "kinds": "crash", "every_ms": "1500"},
    **{name: {"meetings": "1"} for name in MEETING_BUGS},
    **{name: {"keys": "1"} for name in KEY_BUGS},
    **{name: {"operators": "1"} for name in OPERATION_BUGS},
    **{name: {"durable": "1", **options} for name, options in DURABLE_OPTIONS.items()},
    **OWNER_OPTIONS,
}
"""What the seeds of a hunt do, for bugs that few of the others notice. Their coordinators have no
memory, unless the bug is about that."""


def _run_cores(name: str, seed: int) -> Result:
    options = {"durable": "0", "survives_percent": "0", **OPTIONS.get(name, {})}
    return campaign.run_seed(seed, options)


def _run_shells(name: str, seed: int) -> Result:
    kind = CulpritWorld if name in of_shells.OF_CULPRITS else World
    return shells.run_seed(seed, is_durable=name in of_shells.DURABLE, kind=kind)


def _run_relays(name: str, seed: int) -> Result:
    return shells.run_seed(seed, is_durable=False, kind=RelayedWorld)


BUGS: Mapping[str, Mapping[str, Bug]] = {
    "cores": of_cores.BUGS,
    "shells": of_shells.BUGS,
    "relays": of_relays.BUGS,
}
"""By the world in which they are planted, and by name."""
RUN: Mapping[str, Callable[[str, int], Result]] = {
    "cores": _run_cores,
    "shells": _run_shells,
    "relays": _run_relays,
}


def read_noticed() -> dict[str, dict[str, int]]:
    """Return the known seeds, by world and bug."""
    noticed: dict[str, dict[str, int]] = json.loads(NOTICED.read_text())
    return noticed


def choose_seeds(known: int) -> Iterable[int]:
    """Return the seeds of a hunt."""
    return chain(range(known, known + NEAR), HUNT)


def hunt(world: str, name: str, seeds: Iterable[int]) -> Result | None:
    """Return the first of the seeds that fails with a bug."""
    with planted(BUGS[world][name]):
        results = (RUN[world](name, seed) for seed in seeds)
        return next((found for found in results if found.failure), None)


def is_noticed(world: str, name: str, seed: int) -> bool:
    """Return whether a seed passes, and with a bug breaks a rule that is about it."""
    found = hunt(world, name, [seed])
    rules = BUGS[world][name][1]
    return found is not None and found.rule in rules and not RUN[world](name, seed).failure


def find(most: int, place: tuple[str, str, int]) -> int | None:
    """Return a seed that notices a bug: the known one, or the first; None if there is none."""
    world, name, known = place
    seeds = chain(range(known, known + NEAR), range(most))
    return next((seed for seed in seeds if is_noticed(world, name, seed)), None)


def main() -> int:
    """Find a seed for each bug, and write them; return 1 if there is none for some bug."""
    parser = argparse.ArgumentParser(description="find the seeds that notice each planted bug")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="default: all")
    parser.add_argument("--world", choices=tuple(BUGS), help="default: all")
    parser.add_argument("--seeds", type=int, default=3_000, help="tried for a bug, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    args = parser.parse_args()
    noticed = read_noticed()
    places = [
        (world, name, noticed[world].get(name, 0))
        for world, bugs in BUGS.items()
        for name in bugs
        if args.world in (None, world) and (not args.bugs or name in args.bugs)
    ]
    missed: list[str] = []
    with get_context("fork").Pool(args.jobs) as pool:
        found = pool.imap(partial(find, args.seeds), places)
        for (world, name, known), seed in zip(places, found, strict=True):
            if seed is None:
                missed.append(name)
                print(f"{world}: no seed notices {name!r}", flush=True)
            elif seed != known and (seed >= NEAR or name in noticed[world]):
                print(f"{world}: seed {seed} notices {name!r}, not {known}", flush=True)
                noticed[world][name] = seed
                NOTICED.write_text(json.dumps(noticed, indent=1, sort_keys=True) + "\n")
    print(f"{len(places) - len(missed)} of {len(places)} bugs are noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    gc.freeze()
    sys.exit(main())
