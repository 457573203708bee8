"""The environment and the command of a worker, the same as torchrun's.

The variables are those of torch 2.13's `LocalElasticAgent`. Ours are added with the prefix
`RALLYPOINT_`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.evidence.mode import Arming
from rallypoint.agent.helper.frames import ARMED_ENV
from rallypoint.agent.in_worker import FUNCTION, RUN_PATH
from rallypoint.agent.torchelastic.variables import SERVER_ENV
from rallypoint.base import worker_variables
from rallypoint.wire.access import TLS_VARIABLES, TOKEN_VARIABLES

if TYPE_CHECKING:
    from rallypoint.agent.preload.command import Shape

_FLAGS_END = 2
"""The interpreter and -u."""
_ISOLATING = frozenset("EIS")
"""Flags of an interpreter that does not run our hook."""
_FUNCTION_ARGUMENTS = 3
"""Payload, result and local rank."""
_ACCESS = frozenset((*TLS_VARIABLES, *TOKEN_VARIABLES))


class Function(Struct, frozen=True):
    """A Python function that the workers run instead of a program."""

    payload: str
    """File with the pickled call; empty: the helper is a fork of a process that has the call."""
    results: str
    """Folder for what the workers return."""
    flags: tuple[str, ...] = ()
    """Of the workers' interpreter."""
    is_forked: bool = False
    """The helper forks the workers, and no other program is executed in them."""

    def result_file(self, round: int, local_rank: int) -> str:
        """Return the file for what a worker returns; it exists once it is complete."""
        return f"{self.results}/{local_rank}-{round}"


class Launch(Struct, frozen=True):
    """The program of the workers, and how to run it."""

    script: str
    """A path, a module name, or a program."""
    args: tuple[str, ...]
    is_module: bool = False
    """Run as `python -m`."""
    no_python: bool = False
    """Run the program itself."""
    run_path: bool = False
    """Run the script by runpy, and record the exception that ends it."""
    virtual_local_rank: bool = False
    """Every worker sees one GPU and gets LOCAL_RANK=0."""
    function: Function | None = None
    """Run a function; `script` is its name, for people."""
    limits_threads: bool = True
    """Several workers on a node get OMP_NUM_THREADS=1, unless it is set."""
    master_addr: str = ""
    """MASTER_ADDR of the workers; empty: the round's."""
    cpus: tuple[tuple[int, ...], ...] = ()
    """CPUs of the worker with each local rank; empty: workers are not bound."""

    arming: Arming = Arming.OFF
    """How the workers are armed."""

    @property
    def is_hooked(self) -> bool:
        """Whether code of ours runs in the workers before the program."""
        flags = () if self.function is None else self.function.flags
        short = [flag for flag in flags if flag[:1] == "-" and flag[1:2] not in ("-", "X", "W")]
        is_isolated = any(_ISOLATING & set(flag) for flag in short)
        return self.arming is Arming.FULL and not self.no_python and not is_isolated

    def cpus_of(self, local_rank: int) -> tuple[int, ...]:
        """Return the CPUs that this worker is bound to; none: it is not bound."""
        return self.cpus[local_rank] if self.cpus else ()

    def shape(self, first_path: str) -> Shape:
        """Return the parts of a worker's command line.

        Args:
            first_path: what a program in this process's place has first on sys.path.
        """
        import zipfile  # slow, and only a node that preloads asks

        from rallypoint.agent.preload.command import Shape

        if self.function is not None:
            return Shape(1 + len(self.function.flags), _FUNCTION_ARGUMENTS, first_path)
        if self.is_module:
            return Shape(_FLAGS_END, len(self.args), os.getcwd(), self.script)
        has_main = os.path.isdir(self.script) or zipfile.is_zipfile(self.script)
        folder = os.path.dirname(os.path.realpath(self.script))
        path = os.path.abspath(self.script) if has_main else folder
        # run_path.py finds the script among its arguments.
        return Shape(_FLAGS_END, len(self.args) + self.run_path, path)


class WorkerFiles(Struct, frozen=True):
    """Paths in the environment of a worker."""

    error: str
    """Its error file; empty: none."""
    notices: str
    """The notice file of its round."""
    server: str
    """The Unix socket on which `torch.distributed.elastic.control_plane.worker_main` listens;
    empty: none."""
    marks: str = ""
    """The FIFO for its milestones; empty: its agent hears of none."""
    armed: str = ""
    """Prefix of the files by which it shows what it does; empty: it is not asked to."""


def worker_command(launch: Launch, *, python: str, round: int, local_rank: int) -> tuple[str, ...]:
    """Return the command line of one worker, with `${local_rank}` in its arguments replaced.

    For a worker that the helper forks it is what the helper's `run` takes.
    """
    function = launch.function
    if function is not None:  # its pickles suit this interpreter only
        result = function.result_file(round, local_rank)
        arguments = (function.payload, result, str(local_rank))
        if function.is_forked:
            return arguments
        return (sys.executable, *function.flags, FUNCTION, *arguments)
    args = tuple(arg.replace("${local_rank}", str(local_rank)) for arg in launch.args)
    if launch.no_python:
        return (launch.script, *args)
    module = ("-m",) if launch.is_module else (RUN_PATH,) if launch.run_path else ()
    return (python, "-u", *module, launch.script, *args)


def shown_command(launch: Launch, *, python: str) -> tuple[str, ...]:
    """Return the command line of a worker without its arguments, which may be secret."""
    if launch.function is not None:
        return ()
    plain = replace(launch, args=(), run_path=False)  # the user has not written what runs a path
    return worker_command(plain, python=python, round=0, local_rank=0)


def find_python(environment: Mapping[str, str]) -> str:
    """Return the interpreter of the workers: PYTHON_EXEC, else the agent's own."""
    return environment.get("PYTHON_EXEC") or sys.executable


def visible_device(environment: Mapping[str, str], local_rank: int) -> str:
    """Return CUDA_VISIBLE_DEVICES for a worker that sees one GPU, out of the agent's list.

    Raises:
        IndexError: the agent's list is shorter.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    return str(local_rank) if visible is None else visible.split(",")[local_rank].strip()


def without_access(parent: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what proves who the agent is.

    A worker has its own token. What it needs to verify the coordinator comes from the agent's
    settings: its flags, or nothing for a coordinator that is built in.
    """
    return {name: value for name, value in parent.items() if name not in _ACCESS}


def worker_environment(
    parent: Mapping[str, str],
    order: RunOrder,
    *,
    local_rank: int,
    job_id: str,
    files: WorkerFiles,
    virtual_local_rank: bool = False,
    limits_threads: bool = True,
    master_addr: str = "",
    arming: Arming = Arming.OFF,
    ours: Iterable[tuple[str, str]],
) -> dict[str, str]:
    """Return the whole environment of one worker.

    Args:
        parent: the environment that all workers inherit.
        order: the round and the node's place in it.
        local_rank: the worker's number on the node, 0 to local_world_size - 1.
        job_id: name of the job, as TORCHELASTIC_RUN_ID.
        files: paths that its variables name.
        virtual_local_rank: let it see only its GPU, as device 0.
        limits_threads: set OMP_NUM_THREADS if there are several workers, and it is not set.
        master_addr: replaces the address of the round's rank 0; empty: it stays.
        arming: how the worker is armed.
        ours: further variables, such as RALLYPOINT_NODE.
    """
    environment = without_access(parent)
    environment.update(
        RANK=str(order.assignment.first_rank + local_rank),
        LOCAL_RANK=str(local_rank),
        GROUP_RANK=str(order.assignment.group_rank),
        ROLE_RANK=str(order.assignment.first_role_rank + local_rank),
        ROLE_NAME=order.assignment.role,
        LOCAL_WORLD_SIZE=str(order.assignment.local_world_size),
        WORLD_SIZE=str(order.header.world_size),
        GROUP_WORLD_SIZE=str(order.header.group_world_size),
        ROLE_WORLD_SIZE=str(order.assignment.role_world_size),
        MASTER_ADDR=master_addr or order.header.master_addr,
        MASTER_PORT=str(order.header.master_port),
        TORCHELASTIC_RESTART_COUNT=str(order.header.restart_count),
        TORCHELASTIC_MAX_RESTARTS=str(order.max_restarts),
        TORCHELASTIC_RUN_ID=job_id,
        # The worker with rank 0 hosts the store, a new one for every round, on the port that its
        # agent has reserved.
        TORCHELASTIC_USE_AGENT_STORE="False",
        TORCHELASTIC_ERROR_FILE=files.error,
    )
    environment.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if limits_threads and order.assignment.local_world_size > 1:
        environment.setdefault("OMP_NUM_THREADS", "1")
    if virtual_local_rank:
        environment["LOCAL_RANK"] = "0"
        environment["CUDA_VISIBLE_DEVICES"] = visible_device(parent, local_rank)
    environment.update(ours)
    environment[worker_variables.LOCAL_RANK] = str(local_rank)
    environment[worker_variables.ROUND] = str(order.number)
    environment[worker_variables.NOTICE_FILE] = files.notices
    environment[worker_variables.RUN] = str(order.header.run)
    environment[worker_variables.EPOCH] = str(order.header.epoch)
    environment[worker_variables.WORKER_TOKEN] = order.worker_token
    # An inherited socket would be the same for all workers, but only one could listen on it.
    environment.pop(SERVER_ENV, None)
    if files.server:
        environment[SERVER_ENV] = files.server
    # The same holds for the FIFO of another agent around this one.
    environment.pop(worker_variables.MARK_PIPE, None)
    if files.marks:
        environment[worker_variables.MARK_PIPE] = files.marks
    environment.pop(ARMED_ENV, None)
    if files.armed:
        environment[ARMED_ENV] = files.armed
    if arming is Arming.SIGNALS:
        environment.setdefault("PYTHONFAULTHANDLER", "1")
    return environment
