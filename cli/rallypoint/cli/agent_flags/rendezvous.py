"""The names under which torchrun knows a job's meeting point, and what they mean here."""

from __future__ import annotations

import argparse

from rallypoint.cli.agent_flags import rdzv_conf
from rallypoint.cli.flags import Parser, fail, how_given, plain, port_number

OWN_BACKEND = "rallypoint"


def add(parser: Parser) -> None:
    """Add the flags."""
    add = parser.add_argument_group("where, in the words of torchrun").add_argument
    add("--rdzv-endpoint", default="", metavar="HOST:PORT", help="another name for --coordinator")
    add("--rdzv-id", type=plain, metavar="ID", help="another name for --job-id")
    add(
        "--rdzv-backend",
        default=OWN_BACKEND,
        metavar="NAME",
        help="any; the coordinator takes its place (torchrun: static)",
    )
    add(
        "--rdzv-conf",
        type=rdzv_conf.parse,
        default={},
        metavar="K=V,…",
        help=f"other names for flags of the job: {', '.join(rdzv_conf.HEARD)}; others of torch "
        "have no effect",
    )
    add(
        "--master-addr",
        type=plain,
        default="",
        metavar="ADDR",
        help="what --node-rank 0 gives as MASTER_ADDR (default: its --local-addr; torchrun: "
        "127.0.0.1)",
    )
    add(
        "--master-port",
        type=port_number,
        default=0,
        metavar="PORT",
        help="what it gives as MASTER_PORT (default: a new free one in every round; torchrun: "
        "29500)",
    )
    add("--monitor-interval", type=float, metavar="S", help="no effect: nothing here is polled")


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a configuration that says nothing; what it says goes where our own flags go."""
    try:
        rdzv_conf.apply(args)
    except rdzv_conf.BadConf as bad:
        fail(prog, f"{how_given(args, 'rdzv_conf')}: {bad}")
