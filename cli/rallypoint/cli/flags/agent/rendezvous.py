"""torchrun's flags for the rendezvous, and their meaning here."""

from __future__ import annotations

from rallypoint.agent.launch.options import ATTEMPTS, COMMAND_KEYS, INTERVAL, read_config
from rallypoint.base.values import BadValue, text
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail
from rallypoint.cli.flags.values import number, port_number

OWN_BACKEND = "rallypoint"


def pairs(text: str) -> dict[str, str]:
    """Parse `key=value,…`; a value may contain `=`."""
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not key or not equals or not value:
            raise BadValue(f"{part!r} is not KEY=VALUE")
        found[key] = value
    return found


GROUPS = (
    Group(
        "Rendezvous flags of torchrun",
        (
            Flag(
                names=("--rdzv-endpoint",),
                parse=str,
                metavar="HOST:PORT",
                default="",
                help="where the nodes meet: the node of that name starts a coordinator there, if "
                "none listens",
                default_text="port 29400",
            ),
            Flag(names=("--rdzv-id",), parse=text, metavar="ID", help="the same as --job-id"),
            Flag(
                names=("--rdzv-backend",),
                parse=str,
                metavar="NAME",
                default=OWN_BACKEND,
                help="any name is accepted; the coordinator replaces the backend",
                torchrun="static",
            ),
            Flag(
                names=("--rdzv-conf",),
                parse=pairs,
                metavar="KEY=VALUE,…",
                default={},
                help=f"{', '.join((*COMMAND_KEYS, INTERVAL, ATTEMPTS))} are honoured; "
                "torch's other keys have no effect",
            ),
            Flag(
                names=("--master-addr",),
                parse=text,
                metavar="ADDR",
                default="",
                help="MASTER_ADDR, when this is --node-rank 0; without --rdzv-endpoint and "
                "--coordinator, node 0 starts a coordinator there",
                default_text="its --local-addr",
                torchrun="127.0.0.1",
            ),
            Flag(
                names=("--master-port",),
                parse=port_number,
                metavar="PORT",
                default=0,
                help="MASTER_PORT, when this is --node-rank 0, or the port of the coordinator that "
                "it starts",
                default_text="a free port in every round",
                torchrun="29500",
            ),
            Flag(
                names=("--monitor-interval",),
                parse=number,
                metavar="SECONDS",
                help="no effect: an exit is noticed at once",
                torchrun="0.1",
            ),
        ),
    ),
)


def check(args: Values) -> None:
    """Reject bad keys of --rdzv-conf; set the flags that the good ones stand for."""
    try:
        values = read_config(args.rdzv_conf, COMMAND_KEYS)
    except BadValue as bad:
        fail(args.prog, f"{args.source('rdzv_conf')}: {bad}")
    for name, value in values.items():
        if name not in args.given:
            setattr(args, name, value)
