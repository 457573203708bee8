"""What every worker runs, how many there are, and what of the machine each one gets."""

from __future__ import annotations

import argparse
import os
import shutil
from typing import TYPE_CHECKING

from rallypoint.cli.flags import Parser, fail, positive_int

if TYPE_CHECKING:
    from rallypoint.agent.placement import Placement

BINDINGS = ("node", "socket", "exclusive", "core-complex")
START_METHODS = ("spawn", "fork", "forkserver")


def add(parser: Parser) -> None:
    """Add the flags, and the program with its arguments."""
    add = parser.add_argument_group("what").add_argument
    add(
        "--nproc-per-node",
        type=worker_count,
        default=1,
        metavar="N",
        help="workers here (default: 1): a number, or as many as there are: auto (of the "
        "accelerator, else cpu), cpu, gpu, xpu, or a privateuse1 backend by its name",
    )
    add("-m", "--module", action="store_true", help="run the script as python -m")
    add("--no-python", action="store_true", help="run the program itself")
    add(
        "--run-path",
        action="store_true",
        help="run the script by runpy in a fresh interpreter, which records its exception",
    )
    add(
        "--start-method",
        choices=START_METHODS,
        default="spawn",
        help="of workers that are functions; a command line has none (default: spawn)",
    )
    add(
        "--virtual-local-rank",
        action="store_true",
        help="LOCAL_RANK=0 for every worker, and the one GPU of its real one to see",
    )
    add(
        "--numa-binding",
        choices=BINDINGS,
        help="bind every worker to CPUs near the GPU of its local rank (default: off)",
    )
    add("script", help="the program of every worker")
    add("args", nargs=argparse.REMAINDER, help="its arguments").required = False


def worker_count(text: str) -> int | str:
    """Parse a whole number of 1 or more, or a word that says what to count."""
    return text if text.isidentifier() else positive_int(text)


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a program that is not there, and ways to run it that exclude each other."""
    ways = [flag for flag in ("module", "no_python", "run_path") if getattr(args, flag)]
    if len(ways) > 1:
        first, second = (f"--{way.replace('_', '-')}" for way in ways[:2])
        fail(prog, f"{first} and {second} exclude each other")
    if args.no_python and shutil.which(args.script) is None:
        fail(prog, f"{args.script}: no such program; give a path or a name on PATH")
    if not args.module and not args.no_python and not _is_script(args.script):
        fail(prog, f"{args.script}: no such script in {os.getcwd()}")


def _is_script(path: str) -> bool:
    """Return whether `python PATH` finds something.

    That is a file, also one that is none on a disk (/dev/stdin), a folder with a __main__.py, or
    `-`, which is standard input.
    """
    if path == "-" or os.path.isfile(os.path.join(path, "__main__.py")):
        return True
    return os.path.exists(path) and not os.path.isdir(path)


def place(args: argparse.Namespace, prog: str) -> Placement:
    """Find out how many workers there are and which CPUs they get, or exit with 2.

    Takes as long as importing torch does, in another process, unless only numbers are asked for.
    """
    from rallypoint.agent.core.numa import Binding
    from rallypoint.agent.placement import CannotPlace, check_visible_devices, find_placement

    binding = Binding(args.numa_binding) if args.numa_binding is not None else None
    try:
        found = find_placement(args.nproc_per_node, binding, os.environ)
        if args.virtual_local_rank:
            check_visible_devices(found.count.number, os.environ)
    except CannotPlace as error:
        fail(prog, str(error))
    return found
