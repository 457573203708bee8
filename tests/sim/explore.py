"""Explore a small world completely: `python tests/sim/explore.py --nodes 2 --depth 12`.

`run.py` draws long histories of large worlds; this looks at every history of a small one: every
order in which messages arrive, every instant at which one of a few things may go wrong. A broken
rule prints a shortest way there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __package__ in (None, ""):
    sys.path[0] = str(ROOT / "tests")

from sim.seeds.bugs import BUGS  # noqa: E402  # after the path is set
from sim.seeds.planting import planted  # noqa: E402  # the same
from sim.small.search import Found, Search  # noqa: E402  # the same
from sim.small.small import Bounds, Mishap  # noqa: E402  # the same


def main() -> int:
    """Explore as the arguments say; return 1 if a rule was broken."""
    usual = Bounds()
    parser = argparse.ArgumentParser(description="explore a small world whole")
    parser.add_argument("--nodes", type=int, default=usual.nodes)
    parser.add_argument("--min-nodes", type=int, help="default: all")
    parser.add_argument("--workers", default="1", help="per node, with commas; the last holds on")
    parser.add_argument("--late", type=int, default=0, help="nodes that come at any time")
    parser.add_argument("--max-restarts", type=int, default=usual.max_restarts)
    parser.add_argument("--drain-ms", type=int, default=0, help="after a SIGTERM to an agent")
    parser.add_argument("--fence-ms", type=int, default=0, help="the job's; leaves silence out")
    parser.add_argument("--depth", type=int, default=usual.depth, help="moves on one path")
    parser.add_argument("--mishaps", type=int, default=usual.faults, help="on one path")
    kinds = ", ".join(kind.value for kind in Mishap)
    parser.add_argument("--kinds", default="", help=f"of mishaps, with commas; all: {kinds}")
    parser.add_argument("--states", type=int, default=usual.states_max, help="at most")
    parser.add_argument("--running", action="store_true", help="begin where a round runs")
    parser.add_argument("--stay", action="store_true", help="no worker ends with 0")
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant one")
    args = parser.parse_args()
    bounds = Bounds(
        nodes=args.nodes,
        min_nodes=args.nodes if args.min_nodes is None else args.min_nodes,
        workers=tuple(int(count) for count in args.workers.split(",")),
        late=args.late,
        max_restarts=args.max_restarts,
        drain_ms=args.drain_ms,
        fence_ms=args.fence_ms,
        faults=args.mishaps,
        kinds=frozenset(Mishap(name) for name in args.kinds.split(",") if name)
        or frozenset(Mishap),
        depth=args.depth,
        states_max=args.states,
        is_running=args.running,
        exits=not args.stay,
    )
    if args.bug:
        with planted(BUGS[args.bug]):
            found = Search(bounds).run()
    else:
        found = Search(bounds).run()
    for line in found.trace:
        print(line)
    print(describe(found))
    return 1 if found.rule else 0


def describe(found: Found) -> str:
    """Return the result of an exploration, as a line or two."""
    if found.rule:
        end = f"broken: {found.failure}"
    elif found.is_exhausted:
        end = "nothing is left"
    elif found.is_whole:
        end = f"everything within {found.depth} moves"
    else:
        end = f"ended at the limit of states, beyond {found.depth} moves"
    pace = found.transitions / max(found.elapsed_s, 1e-9)
    return (
        f"{found.states} states, {found.transitions} transitions, {found.depth} moves deep, "
        f"{found.final} final, {found.elapsed_s:.1f} s ({pace:.0f} transitions/s): {end}"
    )


if __name__ == "__main__":
    sys.exit(main())
