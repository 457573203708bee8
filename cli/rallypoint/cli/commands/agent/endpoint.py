"""Decides where the nodes of a job meet if no coordinator was named: in which one of them hosts it.

torchrun has two such styles. With `--rdzv-endpoint` the host is the one that it names. With
`--master-addr`, `--master-port` and `--node-rank` it is node 0, and the store of rank 0 listens
there; here the port belongs to the coordinator.
"""

from __future__ import annotations

from rallypoint.agent.hosting.decision import Hosting
from rallypoint.agent.launch.meeting_point import C10D_PORT, host_at
from rallypoint.base.addresses import parse_endpoint
from rallypoint.cli.flags.agent.job import read_options
from rallypoint.cli.flags.flag import Values

STATIC_PORT = 29_500
"""torchrun's default for --master-port."""
_STATIC_FLAGS = ("master_addr", "master_port", "node_rank")


class NoEndpoint(Exception):
    """An endpoint or address is none; with a text for the user."""


def find_hosting(args: Values) -> Hosting | None:
    """Return where the nodes meet; None when the flags name no such place, or several coordinators.

    Args:
        args: the values of all flags; neither a coordinator nor --standalone is among them.

    Raises:
        NoEndpoint: an endpoint or address is none.
    """
    is_alone = args.nnodes[1] == 1
    text = str(args.rdzv_endpoint).strip()
    if "," in text:
        return None
    # With torchrun, a single node gives an endpoint with port 0 to avoid meeting other jobs.
    if text and not (is_alone and text.endswith(":0")):
        return _hosting(args, "rdzv_endpoint", text, C10D_PORT, chosen=None)
    if is_alone:
        return None
    if any(name in args.given for name in _STATIC_FLAGS):
        return _find_static(args)
    if args.rdzv_backend == "c10d":
        return _hosting(args, "rdzv_endpoint", "localhost", C10D_PORT, chosen=None)
    return None


def _find_static(args: Values) -> Hosting:
    address = args.master_addr or "127.0.0.1"
    bare = address.strip("[]")
    host = f"[{bare}]" if ":" in bare else bare
    chosen = None if args.node_rank is None else args.node_rank == 0
    port = args.master_port or STATIC_PORT
    return _hosting(args, "master_addr", f"{host}:{port}", port, chosen=chosen)


def _hosting(
    args: Values, dest: str, text: str, default_port: int, *, chosen: bool | None
) -> Hosting:
    endpoint = parse_endpoint(text, default_port)
    if endpoint is None:
        raise NoEndpoint(f"{args.source(dest)}: {text!r} is not HOST:PORT of a coordinator")
    return host_at(endpoint, read_options(args), chosen=chosen)
