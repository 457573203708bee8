"""Where the coordinator is, which job this is, and who this node is."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from rallypoint.cli.flags import Parser, endpoint, fail, label, natural_int

JOB_ID_BYTES_MAX = 255


def add(parser: Parser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("where").add_argument
    add("--coordinator", type=endpoint, help="host:port of the coordinator")
    add("--standalone", action="store_true", help="single node with a coordinator of its own")
    add(
        "--job-id",
        "--rdzv-id",
        dest="job_id",
        metavar="ID",
        help="name of the job, the same on every node",
    )
    add("--launch-id", default="", metavar="ID", help="name of this launch of the job")
    add("--node-name", metavar="NAME", help="name of this node (default: the host name)")
    add("--node-rank", type=natural_int, metavar="N", help="place among the nodes (default: any)")
    add("--local-addr", metavar="ADDR", help="address of this node for workers elsewhere")
    add("--label", type=label, action="append", default=[], metavar="KEY=VALUE", help="repeatable")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse what leads to no coordinator, or to no job."""
    if args.standalone == (args.coordinator is not None):
        fail(prog, "give either --coordinator HOST:PORT or --standalone")
    if args.standalone and args.nnodes != (1, 1):
        fail(prog, "--standalone is for a single node: leave --nnodes away")
    if args.job_id is None and resolve_job_id(args, os.environ) == "":
        fail(prog, "a job of several nodes needs a name: give every node the same --job-id")
    if args.job_id is not None and not 0 < len(args.job_id.encode()) <= JOB_ID_BYTES_MAX:
        fail(prog, f"--job-id must have 1 to {JOB_ID_BYTES_MAX} bytes")


def resolve_job_id(args: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the job's name: the given one, else Slurm's, else a fresh one for a single node.

    Returns:
        The name; empty for a job of several nodes that has none.
    """
    if args.job_id is not None:
        return str(args.job_id)
    if args.nnodes[1] == 1:
        return f"job-{os.urandom(6).hex()}"
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    return f"slurm-{job}.{step or 0}" if job else ""
