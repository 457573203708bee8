"""A worker starts with the environment, command line and folder that torchrun would give."""

import os
import sys
from pathlib import Path

import pytest

from support.processes.commands import NODE_AGENT
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, World

ALWAYS = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_WORKER_SERVER_SOCKET",
    }
)
"""What torchrun sets for every worker, and the socket that it leaves to the user."""
# Node (group rank), local rank, rank, role, rank and world size in the role, workers on the node.
PLACES = """
    n2  0 0 0 trainer 0 3 1
    n10 1 0 1 judge   0 3 3
    n10 1 1 2 judge   1 3 3
    n10 1 2 3 judge   2 3 3
    n11 2 0 4 trainer 1 3 2
    n11 2 1 5 trainer 2 3 2
"""
COLUMNS = "GROUP_RANK LOCAL_RANK RANK ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE LOCAL_WORLD_SIZE".split()


def end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.tell("exit", "0")


def added(worker: Worker, parent: dict[str, str]) -> set[str]:
    """Return the variables that the worker has and the agent had not, without our own."""
    return {name for name in worker.env if name not in parent and not name.startswith("RALLYPOINT")}


def test_every_variable_of_every_worker(world: World) -> None:
    """Three nodes with 1, 3 and 2 workers in two roles: ranks go by node, then by local rank."""
    for name, nproc, role in (("n2", 1, "trainer"), ("n10", 3, "judge"), ("n11", 2, "trainer")):
        flags = (f"--role={role}", "--max-restarts=4")
        world.agent(name, *flags, nnodes="3", nproc=nproc)
    workers = world.mailbox.workers(6)
    seen = [[worker.node, *(worker.env[name] for name in COLUMNS)] for worker in workers]

    assert seen == [line.split() for line in PLACES.split("\n") if line.strip()]
    for worker in workers:
        is_alone = worker.env["LOCAL_WORLD_SIZE"] == "1"
        assert added(worker, world.env()) == ALWAYS | (set() if is_alone else {"OMP_NUM_THREADS"})
        assert worker.env.get("OMP_NUM_THREADS") == (None if is_alone else "1")
        assert worker.env["WORLD_SIZE"] == "6"
        assert worker.env["GROUP_WORLD_SIZE"] == "3"
        assert worker.env["MASTER_ADDR"] == "127.0.0.1"
        assert worker.env["TORCHELASTIC_RESTART_COUNT"] == "0"
        assert worker.env["TORCHELASTIC_MAX_RESTARTS"] == "4"
        assert worker.env["TORCHELASTIC_RUN_ID"] == world.job_id
        assert worker.env["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert worker.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
        assert worker.env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
        assert Path(worker.env["TORCHELASTIC_ERROR_FILE"]).name == "error.json"
    assert len({worker.env["MASTER_PORT"] for worker in workers}) == 1
    assert len({worker.env["TORCHELASTIC_ERROR_FILE"] for worker in workers}) == 6
    assert len({worker.env["TORCH_WORKER_SERVER_SOCKET"] for worker in workers}) == 6


def test_what_the_operator_has_set_is_passed_on(world: World) -> None:
    """Workers inherit the environment; OMP_NUM_THREADS and NCCL settings are kept."""
    ours = {
        "OMP_NUM_THREADS": "3",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "CUDA_VISIBLE_DEVICES": "1,0",
        "RANK": "77",
        "NOT_ASCII": "grüße",
        "TWO_LINES": "one\ntwo",
    }
    agent = world.agent("a", nproc=2, env=ours)
    workers = world.mailbox.workers(2)

    for rank, worker in enumerate(workers):
        expected = {**world.env(ours), "RANK": str(rank)}
        assert expected.items() <= worker.env.items()
        assert os.readlink(f"/proc/{worker.pid}/cwd") == str(world.folder)
    end(workers)
    assert agent.wait() == 0


def test_master_port_is_new_in_every_round(world: World) -> None:
    """No round has the port of an earlier one, so a late worker finds no store."""
    agent = world.agent("a", "--max-restarts=3")
    ports = []
    for round in range(1, 5):
        (worker,) = world.mailbox.workers(1, round=round)
        ports.append(worker.env["MASTER_PORT"])
        worker.tell("exit", "3" if round < 4 else "0")

    assert agent.wait() == 0
    assert len(set(ports)) == 4


@pytest.mark.parametrize("kind", ["script", "module", "program"])
def test_command_of_a_worker(world: World, kind: str) -> None:
    """A script runs as `python -u`, a module with -m too, a program with --no-python directly.

    Arguments are passed on, even those that look like flags of the agent; `${local_rank}` is
    replaced in them.
    """
    arguments = [
        "--nnodes",
        "7",
        "--no_python",
        "-m",
        "a b",
        "$HOME",
        "shard-${local_rank}.bin",
        "",
    ]
    module = Path(world.folder, "package", "training.py")
    module.parent.mkdir()
    module.write_text(Path(OBEDIENT).read_text())
    flags, python, command = {
        "script": ([], [sys.executable, "-u"], [OBEDIENT]),
        "module": (["-m"], [sys.executable, "-u", "-m"], ["package.training"]),
        "program": (["--no-python"], [], [sys.executable, OBEDIENT]),
    }[kind]
    agent = world.agent("a", *flags, nproc=2, script=[*command, *arguments])
    workers = world.mailbox.workers(2)

    for local_rank, worker in enumerate(workers):
        filled = [argument.replace("${local_rank}", str(local_rank)) for argument in arguments]
        assert list(worker.argv) == filled
        words = Path(f"/proc/{worker.pid}/cmdline").read_text().split("\0")[:-1]
        assert words == [*python, *command, *filled]
    end(workers)
    assert agent.wait() == 0


def test_torchruns_spelling_of_flags_is_understood(world: World) -> None:
    """`--nproc_per_node 2` and `--rdzv_id` mean the same as with dashes."""
    words = ["--nproc_per_node", "2", "--max_restarts=1", "--rdzv_id", "old-habit"]
    agent = world.start("agent", [NODE_AGENT, *words, OBEDIENT])
    workers = world.mailbox.workers(2)

    assert {worker.env["TORCHELASTIC_RUN_ID"] for worker in workers} == {"old-habit"}
    assert {worker.env["TORCHELASTIC_MAX_RESTARTS"] for worker in workers} == {"1"}
    end(workers)
    assert agent.wait() == 0
