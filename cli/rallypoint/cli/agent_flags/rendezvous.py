"""The names under which torchrun knows a job's meeting point, and what they mean here."""

from __future__ import annotations

import argparse

from rallypoint.cli.agent_flags import rdzv_conf
from rallypoint.cli.flags import Parser, fail, port_number

OWN_BACKEND = "rallypoint"


def add(parser: Parser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("rendezvous, as torchrun has it")
    add = group.add_argument
    add("--rdzv-endpoint", default="", metavar="HOST:PORT", help="another name for --coordinator")
    add("--rdzv-id", metavar="ID", help="another name for --job-id")
    add(
        "--rdzv-backend",
        default=OWN_BACKEND,
        metavar="NAME",
        help="any: a coordinator takes its place (torchrun: static)",
    )
    add(
        "--rdzv-conf",
        type=rdzv_conf.parse,
        default={},
        metavar="K=V,…",
        help=f"heard: {', '.join(sorted(rdzv_conf.HEARD))}",
    )
    add("--master-addr", default="", metavar="ADDR", help="MASTER_ADDR, given by --node-rank 0")
    add(
        "--master-port",
        type=port_number,
        default=0,
        metavar="PORT",
        help="MASTER_PORT in every round (default: a new free one each)",
    )
    add("--monitor-interval", type=float, metavar="S", help="no effect: nothing here is polled")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a configuration that says nothing; what it says goes where our own flags go."""
    try:
        rdzv_conf.apply(args)
    except rdzv_conf.BadConf as bad:
        fail(prog, f"--rdzv-conf: {bad}")
