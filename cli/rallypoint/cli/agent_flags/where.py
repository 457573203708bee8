"""Where the coordinator is, which job this is, and who this node is."""

from __future__ import annotations

import argparse

from rallypoint.cli.flags import Parser, endpoint, fail, label, natural_int, plain

JOB_ID_BYTES_MAX = 255


def add(parser: Parser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("where").add_argument
    add(
        "--coordinator",
        type=endpoint,
        metavar="HOST:PORT",
        help="where the coordinator is (default: none for a single node; port: 50051)",
    )
    add(
        "--standalone",
        action="store_true",
        help="a single node with a coordinator of its own, or a job of its own on the given one",
    )
    add(
        "--job-id",
        type=plain,
        metavar="ID",
        help="name of the job, the same on every node (default: a fresh one for a single node, "
        "Slurm's job and step, or --master-addr and port; torchrun: none)",
    )
    add("--launch-id", type=plain, default="", metavar="ID", help="name of this launch of the job")
    add(
        "--node-name",
        type=plain,
        metavar="NAME",
        help="name of this node (default: the host name)",
    )
    add(
        "--node-rank",
        type=natural_int,
        metavar="N",
        help="place among the nodes (default: any; torchrun: 0)",
    )
    add(
        "--local-addr",
        type=plain,
        metavar="ADDR",
        help="address of this node for workers elsewhere (default: its source address towards the "
        "coordinator; torchrun: its full name)",
    )
    add("--label", type=label, action="append", default=[], metavar="KEY=VALUE", help="repeatable")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse names that are none."""
    for name, value in (("--job-id", args.job_id), ("--rdzv-id", args.rdzv_id)):
        if value is None:
            continue
        if not 0 < len(value.encode()) <= JOB_ID_BYTES_MAX:
            fail(prog, f"{name} must have 1 to {JOB_ID_BYTES_MAX} bytes")
        if not value.isprintable():
            fail(prog, f"{name}: {value!r} is not printable")
