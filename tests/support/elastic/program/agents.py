"""Agents that the program makes itself, and launches of two nodes."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup, case
from support.elastic.program.failures import fails_at_first, raises_at_rank
from support.elastic.program.outcome import attempt, describe_result, launch
from support.elastic.program.values import rank

TWO: dict[str, Any] = {"min_nodes": 2, "max_nodes": 2}
SEEN = ("GROUP_WORLD_SIZE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_NAME", "ROLE_WORLD_SIZE")


def make_spec(setup: Setup, entrypoint: Any, *args: Any, nodes: int = 1, **fields: Any) -> Any:
    """Return a WorkerSpec with a handler for so many nodes."""
    parameters = api.RendezvousParameters(
        backend="c10d",
        endpoint=setup.endpoint,
        run_id=setup.folder.name,
        min_nodes=nodes,
        max_nodes=nodes,
        local_addr="127.0.0.1",
        last_call_timeout=1,
        join_timeout=60,
    )
    values = {"role": "trainer", "local_world_size": 2, "max_restarts": 0, "monitor_interval": 0.05}
    return api.WorkerSpec(
        rdzv_handler=api.get_rendezvous_handler(parameters),
        entrypoint=entrypoint,
        args=args,
        local_addr="127.0.0.1",
        **{**values, **fields},
    )


def make_agent(setup: Setup, spec: Any, **options: Any) -> Any:
    setup.logs.mkdir(exist_ok=True)
    return api.LocalElasticAgent(
        spec=spec,
        logs_specs=api.DefaultLogsSpecs(log_dir=str(setup.logs)),
        exit_barrier_timeout=10,
        **options,
    )


def run(setup: Setup, agent: Any, *args: Any) -> Any:
    """Return what comes of `run`, and what the agent knows then."""
    started = time.time()  # noqa: TID251  # the time stamps of failures are of this clock
    found = attempt(setup, lambda: describe_result(setup, agent.run(*args), started))
    group = agent.get_worker_group()
    return [group.group_rank, found, describe_group(group)]  # the rank puts nodes in order


def describe_group(group: Any) -> dict[str, Any]:
    """Describe a WorkerGroup."""
    return {
        "type": type(group).__name__,
        "state": [group.state.name, group.state.value],
        "spec": [group.spec.role, group.spec.local_world_size, group.spec.get_entrypoint_name()],
        "rank": group.group_rank,
        "size": group.group_world_size,
        "master": [type(group.master_addr).__name__, type(group.master_port).__name__],
        "has_store": group.store is not None,
        "workers": [str(worker) for worker in group.workers],
        "ids": [type(worker.id).__name__ for worker in group.workers],
    }


def meets(folder: str, workers: int) -> list[str]:
    """Return what a worker sees, once all have begun."""
    return [wait_for(folder, workers), *(os.environ[name] for name in SEEN)]


def tells_ranks(folder: str, workers: int) -> list[str]:
    """The same, and its place among all workers and among those of its role."""
    seen = meets(folder, workers)
    return [*seen, *(os.environ[name] for name in ("RANK", "GROUP_RANK", "ROLE_RANK"))]


def wait_for(folder: str, count: int) -> str:
    """Wait until so many workers have begun: a node that has succeeded takes no part again."""
    (Path(folder) / f"began-{rank()}").touch()
    end = time.monotonic() + 100
    while len(list(Path(folder).glob("began-*"))) < count:
        if time.monotonic() > end:
            return "alone"
        time.sleep(0.01)
    return ""


def raises_at_group(folder: str, failing: int) -> str:
    wait_for(folder, 2)
    if os.environ["GROUP_RANK"] == str(failing):
        raise RuntimeError(f"group {failing}")
    time.sleep(1)
    return "finished"


@case()
def agent_that_succeeds(setup: Setup) -> Any:
    """RunResult and worker group."""
    return run(setup, make_agent(setup, make_spec(setup, rank)))


@case()
def agent_that_fails(setup: Setup) -> Any:
    """RunResult and worker group."""
    return run(setup, make_agent(setup, make_spec(setup, raises_at_rank, 1)))


@case()
def agent_that_restarts(setup: Setup) -> Any:
    """RunResult of the last attempt."""
    spec = make_spec(setup, fails_at_first, str(setup.folder), max_restarts=1)
    return run(setup, make_agent(setup, spec))


@case()
def agent_that_is_asked_for_a_role(setup: Setup) -> Any:
    """The name of a role makes no difference."""
    return run(setup, make_agent(setup, make_spec(setup, rank, role="other")), "other")


@case()
def agent_with_a_prefix(setup: Setup) -> Any:
    """`log_line_prefix_template` and the start method are arguments of the agent."""
    options = {"log_line_prefix_template": "[${rank}] ", "start_method": "fork"}
    return run(setup, make_agent(setup, make_spec(setup, lambda: rank()), **options))


@case()
def deprecated_function(setup: Setup) -> Any:
    """`WorkerSpec(fn=…)` still works, with a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        spec = make_spec(setup, None, fn=rank)
    kinds = [one.category.__name__ for one in caught if "WorkerSpec" in str(one.message)]
    return [kinds, run(setup, make_agent(setup, spec))]


@case(nodes=2)
def two_nodes(setup: Setup) -> Any:
    """Each returns the values of the workers that it runs, by global rank."""
    return launch(setup, tells_ranks, str(setup.folder), 4, **TWO)


@case(nodes=2)
def two_roles(setup: Setup) -> Any:
    """Each node has a role; role ranks count the workers of a role."""
    found = launch(setup, of_a_role, str(setup.folder), 4, role=f"role-{setup.node}", **TWO)
    return in_any_place(found)


def of_a_role(folder: str, workers: int) -> list[str]:
    return [*meets(folder, workers), os.environ["ROLE_RANK"]]


def in_any_place(found: Any) -> Any:
    """Count the ranks of a node from 0."""
    if "returned" not in found:
        return found
    ranks = sorted(map(int, found["returned"]))
    return {"returned": {str(rank - ranks[0]): found["returned"][str(rank)] for rank in ranks}}


@case(nodes=2)
def agents_of_two_nodes(setup: Setup) -> Any:
    """RunResult and worker group of both."""
    spec = make_spec(setup, tells_ranks, str(setup.folder), 4, nodes=2)
    return run(setup, make_agent(setup, spec))


@case(nodes=2)
def failure_of_one_node(setup: Setup) -> Any:
    """A worker of one node fails for good while the other still works."""
    function = raises_at_group
    spec = make_spec(setup, function, str(setup.folder), 1, nodes=2, local_world_size=1)
    return run(setup, make_agent(setup, spec))
