"""Torchrun's names for the rendezvous lead to the same job here."""

from __future__ import annotations

import socket

from support.processes.commands import NODE_AGENT, Command
from support.processes.mailbox import Worker
from support.processes.world import OBEDIENT, PROMPT, WORKERS, World

ALLREDUCE = str(WORKERS / "allreduce.py")


def launch(world: World, line: str, script: str = OBEDIENT, **variables: str) -> Command:
    """Start an agent as a torchrun user would write it."""
    return world.start("agent", [NODE_AGENT, *line.split(), *PROMPT, script], variables)


def seen(worker: Worker, *names: str) -> tuple[str, ...]:
    return tuple(worker.env[name] for name in names)


def end(agents: list[Command], workers: list[Worker]) -> None:
    """Let a job succeed; only the log was written."""
    for worker in workers:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0] * len(agents)
    assert [(agent.stdout(), agent.said()) for agent in agents] == [("", [])] * len(agents)


def test_operator_may_say_everything_by_variables(world: World) -> None:
    """PET_ variables suffice, as a Kubernetes operator sets them; the command line wins."""
    operator = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "3",
        "PET_MAX_RESTARTS": "4",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": world.target,
        "PET_RDZV_ID": world.job_id,
        "PET_LOCAL_ADDR": "127.0.0.1",
        "PET_RDZV_CONF": "",
    }
    agents = [launch(world, "--nproc=1", **operator) for _ in range(2)]
    workers = world.mailbox.workers(2)

    for worker in workers:
        names = ("TORCHELASTIC_RUN_ID", "WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS")
        assert seen(worker, *names) == (world.job_id, "2", "4")
    end(agents, workers)


def test_static_master_is_what_was_typed_in_every_round(world: World) -> None:
    """MASTER_ADDR and MASTER_PORT are those of the command line in every round, and name the job.

    A loopback address stands for its host in the job's name.
    """
    port = str(world.ports.reserve())
    job = f"{socket.gethostname()}:{port}"
    where = f"--coordinator={world.target} --master-addr=localhost --master-port={port}"
    line = f"--nnodes=2 --max-restarts=1 {where}"
    second = launch(world, f"{line} --node-rank=1")
    second.wait_event("coordinator_reached")
    first = launch(world, f"{line} --node-rank=0")
    for round in (1, 2):
        workers = world.mailbox.workers(2, round=round)
        for rank, worker in enumerate(workers):
            names = ("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
            assert seen(worker, *names) == ("localhost", port, str(rank), job)
        if round == 1:
            workers[1].tell("exit", "3")
    end([first, second], workers)


def test_store_of_rank_0_has_the_static_port_in_every_round(world: World) -> None:
    """Real torch uses the same port after a restart, and the sums are right both times."""
    port = world.ports.reserve()
    line = f"--standalone --nproc=2 --max-restarts=1 --master-port={port}"
    launch(world, line, ALLREDUCE)
    for round in (1, 2):
        workers = world.mailbox.workers(2, round=round)
        reduced = world.mailbox.wait("reduced", 2 * round)

        assert [said.fields["sum"] for said in reduced] == [3] * 2 * round
        assert {worker.env["MASTER_PORT"] for worker in workers} == {str(port)}
        if round == 1:
            workers[1].kill()


def test_master_that_is_not_this_host_is_passed_on_with_a_warning(world: World) -> None:
    """A router may translate the address, so it is not refused."""
    agent = launch(world, "--master-addr=192.0.2.1")
    (worker,) = world.mailbox.workers(1)

    assert seen(worker, "MASTER_ADDR") == ("192.0.2.1",)
    end([agent], [worker])
    (said,) = agent.events("foreign_address_used")
    assert said["address"] == "192.0.2.1"


def test_conf_of_torchs_back_ends_is_the_jobs_policy(world: World) -> None:
    """Known settings are part of the specification; the others are logged once."""
    conf = (
        "join_timeout=61,last_call_timeout=7,keep_alive_interval=2,keep_alive_max_attempt=4,"
        "read_timeout=9"
    )
    words = ["--rdzv-conf", conf, f"--rdzv-id={world.job_id}", f"--rdzv-endpoint={world.target}"]
    agent = world.start("agent", [NODE_AGENT, *words, "--monitor-interval=5", OBEDIENT])
    (worker,) = world.mailbox.workers(1)
    spec = world.jobs.get(world.job_id).spec

    times = (spec.join_timeout, spec.last_call, spec.heartbeat_interval, spec.lease)
    assert [time.ToMilliseconds() for time in times] == [61_000, 7_000, 2_000, 8_000]
    end([agent], [worker])
    (said,) = agent.events("rdzv_conf_keys_ignored")
    assert said["keys"] == ["read_timeout"]
    assert len(agent.events("monitor_interval_ignored")) == 1


def test_launcher_in_a_worker(world: World) -> None:
    """A launcher inside a worker must not join the job around it; with its own job it runs.

    Each of the two agents has its own timers.
    """
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "PET_COORDINATOR": world.target}
    around = f"--rdzv-id={world.job_id} --no-python {NODE_AGENT}"
    refused = launch(world, around, **env, PET_RDZV_ID=world.job_id)
    assert refused.wait() == 1
    refused.drain()
    assert f"this process is already a worker of job {world.job_id}" in refused.stderr()

    agent = launch(world, f"{around} --rdzv-id=inner", **env)
    workers = world.mailbox.workers(1)
    assert seen(workers[0], "TORCHELASTIC_RUN_ID") == ("inner",)
    end([agent], workers)
