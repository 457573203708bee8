"""What each worker is started with: environment and command, as torchrun gives them.

The variables are those of torch 2.13's `LocalElasticAgent`. Ours come on top with the prefix
`RALLYPOINT_`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rallypoint.agent.core.model import RunOrder

SIGNALS_ENV = "TORCHELASTIC_SIGNALS_TO_HANDLE"
"""Names of the signals that the agent handles, SIGTERM and so on, separated by commas."""
SERVER_ENV = "TORCH_WORKER_SERVER_SOCKET"
TIMERS_ENV = "TORCHELASTIC_TIMER_FILE"


@dataclass(frozen=True, slots=True)
class Launch:
    """What the operator asked to run."""

    script: str
    """A path, a module name, or a program."""
    args: tuple[str, ...]
    is_module: bool = False
    """Run as `python -m`."""
    no_python: bool = False
    """Run the program itself."""


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """Paths that a worker is told."""

    error: str
    """Where it may write how it failed; empty: nowhere."""
    notices: str
    """Where it finds what is about to happen to its round."""
    server: str
    """Where `torch.distributed.elastic.control_plane.worker_main` is to listen: a Unix socket of
    its own; empty: nowhere."""
    timers: str
    """Where it sets timers; empty: nobody would heed them."""


def worker_command(launch: Launch, *, python: str, local_rank: int) -> tuple[str, ...]:
    """Return the command line of one worker; `${local_rank}` in arguments is filled in."""
    args = tuple(arg.replace("${local_rank}", str(local_rank)) for arg in launch.args)
    if launch.no_python:
        return (launch.script, *args)
    module = ("-m",) if launch.is_module else ()
    return (python, "-u", *module, launch.script, *args)


def worker_environment(
    parent: Mapping[str, str],
    order: RunOrder,
    *,
    local_rank: int,
    job_id: str,
    files: WorkerFiles,
    ours: Sequence[tuple[str, str]],
) -> dict[str, str]:
    """Return the whole environment of one worker.

    Args:
        parent: the agent's own environment, with what is the same for all its workers.
        order: the round and the node's place in it.
        local_rank: the worker's number on the node, 0 to local_world_size - 1.
        job_id: name of the job, as TORCHELASTIC_RUN_ID.
        files: what it is told where to find.
        ours: further variables, such as RALLYPOINT_NODE.
    """
    found = dict(parent)
    found.update(
        RANK=str(order.first_rank + local_rank),
        LOCAL_RANK=str(local_rank),
        GROUP_RANK=str(order.group_rank),
        ROLE_RANK=str(order.first_role_rank + local_rank),
        ROLE_NAME=order.role,
        LOCAL_WORLD_SIZE=str(order.local_world_size),
        WORLD_SIZE=str(order.world_size),
        GROUP_WORLD_SIZE=str(order.group_world_size),
        ROLE_WORLD_SIZE=str(order.role_world_size),
        MASTER_ADDR=order.master_addr,
        MASTER_PORT=str(order.master_port),
        TORCHELASTIC_RESTART_COUNT=str(order.restart_count),
        TORCHELASTIC_MAX_RESTARTS=str(order.max_restarts),
        TORCHELASTIC_RUN_ID=job_id,
        # Rank 0's worker hosts the store, on the port that its agent has reserved: a fresh store
        # for every round.
        TORCHELASTIC_USE_AGENT_STORE="False",
        TORCHELASTIC_ERROR_FILE=files.error,
    )
    found.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if order.local_world_size > 1:
        found.setdefault("OMP_NUM_THREADS", "1")
    found.update(ours)
    found["RALLYPOINT_ROUND"] = str(order.number)
    found["RALLYPOINT_NOTICE_FILE"] = files.notices
    found["RALLYPOINT_RUN"] = str(order.run)
    # One that we have inherited would be the same for all workers, and only one can listen there.
    found.pop(SERVER_ENV, None)
    if files.server:
        found[SERVER_ENV] = files.server
    if files.timers:
        found[TIMERS_ENV] = files.timers
    return found
