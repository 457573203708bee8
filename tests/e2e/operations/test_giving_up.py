"""`rallypoint cancel --force`: agents that do not answer are given up, as those of dead hosts.

Their lease is half an hour, so they would keep the next run waiting.
"""

from __future__ import annotations

import shlex
import signal

from rallypoint.base.exit_codes import EXIT_CANCELLED, EXIT_FAILED
from rallypoint.v1 import job_pb2
from support.processes.commands import RALLYPOINT, Command
from support.processes.jobs import is_started
from support.processes.mailbox import Worker
from support.processes.world import World

PATIENT = ("--lease=1800", "--heartbeat-interval=0.2")
HINT = "Give up those that cannot answer: rallypoint "


def run(world: World, *words: str) -> str:
    """Run a command that succeeds; return what it prints."""
    done = world.run(RALLYPOINT, "-c", world.target, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(world: World) -> list[Command]:
    return [world.agent(name, *PATIENT, nnodes="2") for name in ("a", "b")]


def await_started(world: World, agents: list[Command], round: int) -> list[Worker]:
    """Wait until the workers of both agents run; return them."""
    for agent in agents:
        agent.wait_event("round_began")
    world.jobs.wait(world.job_id, lambda job: is_started(job, round))
    return world.mailbox.workers(2, round=round)


def is_alive(world: World, worker: Worker) -> bool:
    return worker.pid in world.marked()


def give_up_silent(world: World) -> None:
    """Do what `explain` recommends until it works: the agents must be silent for two heartbeats."""
    shown = run(world, "explain", world.job_id)
    words = shlex.split(shown.partition(HINT)[2])
    assert words[-4:] == [world.job_id, "--run", "1", "--force"], shown
    while (job := world.jobs.get(world.job_id)).run == 1 and job.nodes:
        world.run(RALLYPOINT, *words)


def test_new_run_begins_at_once(world: World) -> None:
    """And the old agents, which were only frozen, end the workers of the old run."""
    old = start(world)
    workers = await_started(world, old, 1)
    for agent in old:
        agent.signal(signal.SIGSTOP)
    run(world, "cancel", world.job_id)
    new = start(world)
    for agent in new:
        agent.wait_event("coordinator_not_reached", why="is still ending")
    give_up_silent(world)
    later = await_started(world, new, 2)

    assert [is_alive(world, worker) for worker in workers] == [True, True]
    for agent in old:
        agent.signal(signal.SIGCONT)
    # The outcome may have been on its way to them before they were given up.
    assert {agent.wait() for agent in old} <= {EXIT_CANCELLED, EXIT_FAILED}
    assert [is_alive(world, worker) for worker in workers] == [False, False]
    job = world.jobs.get(world.job_id)
    assert (job.run, job.phase) == (2, job_pb2.JOB_PHASE_RUNNING)
    for worker in later:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in new] == [0, 0]


def test_agent_that_answers_leaves(world: World) -> None:
    """The one that was given up learns the same outcome when it answers again."""
    a, b = start(world)
    workers = await_started(world, [a, b], 1)
    b.signal(signal.SIGSTOP)
    while world.jobs.get(world.job_id).nodes:
        run(world, "cancel", world.job_id, "--force", "--reason", "wrong data")

    assert a.wait() == EXIT_CANCELLED
    assert [is_alive(world, worker) for worker in workers] == [False, True]
    b.signal(signal.SIGCONT)
    assert b.wait() == EXIT_CANCELLED
    assert not is_alive(world, workers[1])
    assert "the job was cancelled: wrong data" in b.stderr()
