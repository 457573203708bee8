"""What every worker runs, how many workers there are, and which CPUs and GPUs each one gets."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from rallypoint.base.values import positive_int, text
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import one_of

if TYPE_CHECKING:
    from rallypoint.agent.round.placement import Placement

BINDINGS = ("node", "socket", "exclusive", "core-complex")
START_METHODS = ("spawn", "fork", "forkserver")
_LAUNCHERS = ("torchrun", "deepspeed", "tune", "node-agent")
"""Programs that start workers, as this one does."""


def worker_count(value: str) -> int | str:
    """Parse a whole number of 1 or more, or a word that names what to count."""
    return value if value.isidentifier() else positive_int(value)


GROUPS = (
    Group(
        "Workers",
        (
            Flag(
                names=("--nproc-per-node",),
                parse=worker_count,
                metavar="N",
                default=1,
                default_text="1",
                help="workers on this node: a number, or one per device: auto, cpu, gpu, xpu or "
                "another device type",
            ),
            Flag(
                names=("--role",),
                parse=text,
                metavar="NAME",
                default="default",
                default_text="default",
                help="role of this node's workers; role ranks count within it",
            ),
            Flag(names=("-m", "--module"), help="run the script as python -m does"),
            Flag(names=("--no-python",), help="run the script as a program, without Python"),
            Flag(
                names=("--run-path",),
                help="run the script with runpy in a new interpreter that records its exception",
            ),
            Flag(
                names=("--allow-different-programs",),
                help="let this node join although other nodes of its role run another script or "
                "module",
            ),
            Flag(
                names=("--virtual-local-rank",),
                help="give every worker LOCAL_RANK=0 and a single visible GPU, its own",
            ),
            Flag(
                names=("--numa-binding",),
                parse=one_of(*BINDINGS),
                metavar="KIND",
                help=f"bind each worker to CPUs near its GPU: {', '.join(BINDINGS)}",
                default_text="off",
            ),
            Flag(
                names=("--start-method",),
                parse=one_of(*START_METHODS),
                metavar="NAME",
                default="spawn",
                help="no effect: only workers that are Python functions have one",
            ),
            Flag(
                names=("--use-env",),  # of torch.distributed.launch, not of torchrun
                help="no effect: LOCAL_RANK is always in the environment of a worker",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject what does not exist, and ways to run a program that exclude each other."""
    ways = [flag for flag in ("module", "no_python", "run_path") if getattr(args, flag)]
    if len(ways) > 1:
        first, second = (f"--{way.replace('_', '-')}" for way in ways[:2])
        fail(args.prog, f"{first} and {second} exclude each other")
    if args.no_python and shutil.which(args.script) is None:
        fail(args.prog, f"{args.script}: no such program; give a path or a name on PATH")
    python = os.environ.get("PYTHON_EXEC")
    if python and not args.no_python and shutil.which(python) is None:
        fail(args.prog, f"PYTHON_EXEC={python}: no such program; give a path or a name on PATH")
    if not args.module and not args.no_python and not _is_script(args.script):
        fail(args.prog, f"{args.script}: no such script in {os.getcwd()}{_advice(args)}")


def _advice(args: Values) -> str:
    """Return how to start a program that was given as a script, such as `accelerate launch`."""
    if os.sep in args.script or shutil.which(args.script) is None:
        return ""
    if args.script == "accelerate" and args.args[:1] == ["launch"]:
        return "; to keep its configuration: --no-python accelerate launch --num_processes 1 …"
    if args.script in _LAUNCHERS:
        return f"; {args.script} starts workers itself: give the script that it would start"
    return f"; to run the program {args.script}, add --no-python"


def _is_script(path: str) -> bool:
    """Return whether `python PATH` can run something.

    That is a file, including a device such as /dev/stdin, a folder with a __main__.py, or `-` for
    standard input.
    """
    if path == "-" or os.path.isfile(os.path.join(path, "__main__.py")):
        return True
    return os.path.exists(path) and not os.path.isdir(path)


def place(args: Values) -> Placement:
    """Return how many workers there are and which CPUs they get, or exit with 2.

    Unless only numbers are given, this takes as long as importing torch does, in another process.
    """
    from rallypoint.agent.machine.numa import Binding
    from rallypoint.agent.round.placement import (
        CannotPlace,
        check_visible_devices,
        find_placement,
    )

    binding = Binding(args.numa_binding) if args.numa_binding is not None else None
    try:
        placement = find_placement(args.nproc_per_node, binding, os.environ)
        if args.virtual_local_rank:
            check_visible_devices(placement.count.number, os.environ)
    except CannotPlace as error:
        fail(args.prog, str(error))
    return placement
