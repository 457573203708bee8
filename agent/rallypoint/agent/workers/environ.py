"""What each worker is started with: environment and command, as torchrun gives them.

The variables are those of torch 2.13's `LocalElasticAgent`. Ours come on top with the prefix
`RALLYPOINT_`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rallypoint.agent.core.model import RunOrder
from rallypoint.agent.foreign import RUN_PATH

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
    run_path: bool = False
    """Run the script by runpy, and write down the exception that ends it."""
    virtual_local_rank: bool = False
    """Every worker sees one GPU, and is told that its local rank is 0."""
    cpus: tuple[tuple[int, ...], ...] = ()
    """What the worker of each local rank is bound to; empty: workers are not bound."""

    def cpus_of(self, local_rank: int) -> tuple[int, ...]:
        """Return the CPUs that this worker is bound to; none: those of the agent."""
        return self.cpus[local_rank] if self.cpus else ()


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
    module = ("-m",) if launch.is_module else (RUN_PATH,) if launch.run_path else ()
    return (python, "-u", *module, launch.script, *args)


def visible_device(environment: Mapping[str, str], local_rank: int) -> str:
    """Return the CUDA_VISIBLE_DEVICES of a worker that sees one GPU, mapped through the agent's.

    Raises:
        IndexError: the agent's list is shorter.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return str(local_rank) if visible is None else visible.split(",")[local_rank].strip()


def worker_environment(
    parent: Mapping[str, str],
    order: RunOrder,
    *,
    local_rank: int,
    job_id: str,
    files: WorkerFiles,
    virtual_local_rank: bool = False,
    ours: Sequence[tuple[str, str]],
) -> dict[str, str]:
    """Return the whole environment of one worker.

    Args:
        parent: the agent's own environment, with what is the same for all its workers.
        order: the round and the node's place in it.
        local_rank: the worker's number on the node, 0 to local_world_size - 1.
        job_id: name of the job, as TORCHELASTIC_RUN_ID.
        files: what it is told where to find.
        virtual_local_rank: let it see only its GPU, as number 0.
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
    if virtual_local_rank:
        found["LOCAL_RANK"] = "0"
        found["CUDA_VISIBLE_DEVICES"] = visible_device(parent, local_rank)
    found.update(ours)
    found["RALLYPOINT_LOCAL_RANK"] = str(local_rank)
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
