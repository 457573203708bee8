"""Real torchrun with our back end; its workers are those of node-agent's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata

from support.processes.commands import SCRIPTS, Command
from support.processes.world import OBEDIENT, World

TORCHRUN = str(SCRIPTS / "torchrun")
TORCH = tuple(int(part) for part in metadata.version("torch").split(".")[:2])
DOOR = [] if TORCH >= (2, 6) else ["--logs-specs=rallypoint"]
"""Older torchruns look for no back ends in other packages."""
SOON = "last_call_timeout=20,settle_time=0,grow_after=0"
"""Conf keys with which a job waits for nothing but its nodes."""


def torchrun(
    world: World,
    name: str,
    *flags: str,
    nnodes: str = "1",
    nproc: int = 1,
    conf: str = SOON,
    script: Sequence[str] = (OBEDIENT,),
    env: Mapping[str, str] | None = None,
) -> Command:
    """Start torchrun as one node of this test's job."""
    argv = [
        TORCHRUN,
        *DOOR,
        "--rdzv-backend=rallypoint",
        f"--rdzv-endpoint={world.target}",
        f"--rdzv-id={world.job_id}",
        f"--rdzv-conf=node_name={name},{conf}",
        "--local-addr=127.0.0.1",
        f"--nnodes={nnodes}",
        f"--nproc-per-node={nproc}",
        *flags,
        *script,
    ]
    return world.start(f"torchrun {name}", argv, {"OMP_NUM_THREADS": "1", **(env or {})})
