"""Command lines for several nodes in torchrun's documentation, as data.

`$1` is the rank of the node, `$HOST` the name of the first one, `$ADDR` its address. What stands
for the reader's own values in the documentation has values here; everything else is as printed.
"""

from __future__ import annotations

from dataclasses import dataclass

RUN = "distributed/run.py"
LAUNCH = "distributed/launch.py"
C10D = "distributed/elastic/rendezvous/c10d_rendezvous_backend.py"
TUTORIAL = ""
"""On a page of pytorch.org, which is not part of the package."""


@dataclass(frozen=True, slots=True)
class Line:
    """One command line, which is given on both nodes."""

    name: str
    file: str
    """Source in torch that prints it."""
    printed: tuple[str, ...]
    """Texts of that file that the command line comes from."""
    flags: str
    variables: str = ""
    """Of the environment, NAME=VALUE."""
    is_elastic: bool = False
    """One node is enough."""


_FIXED = "--nnodes=2 --nproc-per-node=2 --max-restarts=3 --rdzv-id=job7 --rdzv-backend=c10d"
_ELASTIC = _FIXED.replace("--nnodes=2", "--nnodes=1:4")
_NODE_PRINTED = ("--rdzv-backend=c10d", "--rdzv-endpoint=$HOST_NODE_ADDR")

LINES = (
    Line(
        "fault tolerant",
        RUN,
        ("--nnodes=$NUM_NODES", "--max-restarts=3", *_NODE_PRINTED, "node1.example.com:29400"),
        f"{_FIXED} --rdzv-endpoint=$HOST:29400",
    ),
    Line(
        "fault tolerant, default port",
        RUN,
        ("If no port number is specified ``HOST_NODE_ADDR`` defaults to 29400.",),
        f"{_FIXED} --rdzv-endpoint=$HOST",
    ),
    Line(
        "elastic",
        RUN,
        ("--nnodes=1:4", "--max-restarts=3", *_NODE_PRINTED),
        f"{_ELASTIC} --rdzv-endpoint=$HOST:29400",
        is_elastic=True,
    ),
    Line(
        "elastic, default port",
        RUN,
        ("--nnodes=1:4", "If no port number is specified ``HOST_NODE_ADDR`` defaults to 29400."),
        f"{_ELASTIC} --rdzv-endpoint=$HOST",
        is_elastic=True,
    ),
    Line(
        "torch.distributed.launch",
        LAUNCH,
        ("--nnodes=2 --node-rank=0 --master-addr=", "--nnodes=2 --node-rank=1 --master-addr="),
        "--nproc-per-node=2 --nnodes=2 --node-rank=$1 --master-addr=$ADDR --master-port=1234",
        "PET_MAX_RESTARTS=3",
    ),
    Line(
        "static, default port",
        RUN,
        ("args.master_port = 29500", 'f"{args.master_addr}:{args.master_port}"'),
        "--nproc-per-node=2 --nnodes=2 --node-rank=$1 --master-addr=$HOST",
        "PET_MAX_RESTARTS=3",
    ),
    Line(
        "static by name",
        RUN,
        ('default="static"', "``--rdzv-backend=static``"),
        "--nproc-per-node=2 --nnodes=2 --node-rank=$1 --rdzv-backend=static --master-addr=$HOST "
        "--master-port=29501 --max-restarts=3",
    ),
    Line(
        "old spelling",
        RUN,
        ('"--rdzv_backend"', '"--rdzv_endpoint"', '"--rdzv_id"'),
        "--nproc_per_node=2 --nnodes=2 --max_restarts=3 --rdzv_id=100 --rdzv_backend=c10d "
        "--rdzv_endpoint=$HOST:29400",
    ),
    Line(
        "host by is_host",
        C10D,
        ("is_host", "it is needed is if its value cannot be correctly"),
        f"{_FIXED} --rdzv-endpoint=$ADDR:29400 --rdzv-conf=is_host=$IS_HOST",
    ),
    Line(
        "times of the rendezvous",
        "distributed/elastic/rendezvous/dynamic_rendezvous.py",
        ("join_timeout", "last_call_timeout", "close_timeout"),
        f"{_ELASTIC} --rdzv-endpoint=$HOST "
        "--rdzv-conf=join_timeout=60,last_call_timeout=1,close_timeout=30",
        is_elastic=True,
    ),
    Line(
        "multinode tutorial",
        TUTORIAL,
        (),
        "--nproc_per_node=2 --nnodes=2 --node_rank=$1 --rdzv_id=456 --rdzv_backend=c10d "
        "--rdzv_endpoint=$ADDR:29603",
        "PET_MAX_RESTARTS=3",
    ),
    Line(
        "elastic DDP tutorial",
        TUTORIAL,
        (),
        "--nnodes=2 --nproc_per_node=2 --rdzv_id=100 --rdzv_backend=c10d "
        "--rdzv_endpoint=$ADDR:29400",
        "PET_MAX_RESTARTS=3",
    ),
    Line(
        "variables",
        RUN,
        ("--rdzv-endpoint", "env"),
        "--nproc-per-node=2",
        "PET_NNODES=2 PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=$HOST:29400 PET_RDZV_ID=j "
        "PET_MAX_RESTARTS=3",
    ),
)
