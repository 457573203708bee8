"""A coordinator of the job's own on one host: it appears, survives, and goes with its job."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.base.exit_codes import EXIT_CANCELLED
from rallypoint.wire.last_runs import FOLDER
from support.processes.commands import NODE_AGENT, RALLYPOINT, Command, describe
from support.processes.jobs import Jobs
from support.processes.world import OBEDIENT, PROMPT, World

REFUSED = "node-agent: the coordinator refused:"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world without a coordinator, at a port that is free."""
    with World(tmp_path, "localhost:1") as world:
        port = world.ports.reserve()
        world.ports.close()
        world.target = f"127.0.0.1:{port}"
        yield world


def start(world: World, name: str, *flags: str, **variables: str) -> Command:
    argv = [NODE_AGENT, f"--rdzv-endpoint={world.target}", f"--node-name={name}", *PROMPT]
    return world.start(f"agent {name}", [*argv, "--nnodes=2", *flags, OBEDIENT], variables)


def job_name(world: World) -> str:
    """Return the name of a job that has no other."""
    return f"port-{world.target.rpartition(':')[2]}"


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def coordinators(world: World) -> list[int]:
    return [pid for pid in world.marked() if " coordinator --host" in describe(pid)]


def finish(world: World, agents: list[Command], round: int = 1) -> None:
    """Let the job succeed; nothing of it or its coordinator is left."""
    for worker in world.mailbox.workers(2, round=round):
        worker.tell("exit", "0")

    assert [agent.wait() for agent in agents] == [0, 0]
    assert world.left() == []
    assert kept(world.folder / "state" / "rallypoint") == [FOLDER]


def test_job_brings_its_coordinator(world: World) -> None:
    """One of both agents starts it, and says so; it outlives no job, and leaves no file."""
    agents = [start(world, name) for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    started = [event for agent in agents for event in agent.events("coordinator_started")]

    assert [event["address"] for event in started] == [world.target]
    assert {worker.env["RALLYPOINT_JOB_ID"] for worker in workers} == {job_name(world)}
    assert {worker.env["RALLYPOINT_COORDINATOR"] for worker in workers} == {world.target}
    finish(world, agents)


def test_change_is_awaited_although_the_coordinator_ends_with_it(world: World) -> None:
    """`cancel --wait` learns from what the coordinator has left that every agent has left."""
    agents = [start(world, name) for name in ("a", "b")]
    world.mailbox.workers(2)
    job = job_name(world)
    done = world.run(RALLYPOINT, "-c", world.target, "cancel", job, "--wait")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{job}: run 1 has ended on every node"
    assert [agent.wait() for agent in agents] == [EXIT_CANCELLED] * 2


@pytest.mark.long
def test_coordinator_outlives_its_agent_and_is_started_again(world: World) -> None:
    """SIGKILL to its agent does not touch it; SIGKILL to it neither stops nor forgets the round."""
    agents = [start(world, "a")]
    pid = agents[0].wait_event("coordinator_started")["pid"]
    agents.append(start(world, "b"))
    world.mailbox.workers(2)
    agents[0].kill()
    agents[1].wait_event("round_stopped")
    assert pid in world.marked()
    agents[0] = start(world, "a")
    world.mailbox.workers(2, round=2)
    world.kill(pid)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")

    assert [agent.events("round_stopped")[2:] for agent in agents] == [[], []]
    finish(world, agents, round=2)


def test_what_a_job_was_is_read_when_its_coordinator_has_ended(world: World) -> None:
    """Its verdict, its events and its state, in both formats; a line says where that is from."""
    agents = [start(world, name, "--rdzv-id=digits") for name in ("a", "b")]
    world.mailbox.workers(2)[1].tell("exit", "3")
    assert [agent.wait() for agent in agents] == [1, 1]

    def ask(*words: str) -> tuple[str, str]:
        done = world.run(RALLYPOINT, *words, "-c", world.target)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    for words in (["verdict", "digits"], ["status", "digits"], ["status", "digits", "-w"]):
        text, note = ask(*words)
        assert "failed first: exit code 3" in " ".join(text.split())
        assert note.startswith(f"no coordinator answers at {world.target}: connection refused; ")
        assert "this is what it left when job digits ended " in note
    assert "run closed" in ask("events", "digits", "-f")[0]
    assert json.loads(ask("verdict", "digits", "-o", "json")[0])["verdict"]["nodeName"] == "b"
    assert json.loads(ask("status", "digits", "-o", "json")[0])["outcome"] == "OUTCOME_FAILED"
    kinds = json.loads(ask("events", "--kind", "run-closed", "-o", "json")[0])
    assert [event["jobId"] for event in kinds] == ["digits"]
    assert "digits" in ask("jobs")[0]
    told = " ".join(ask("explain", "digits")[0].split())
    assert f"it has ended (failed); see why: rallypoint -c {world.target} verdict digits" in told
    for unknown, target in (("digits", "127.0.0.1:1"), ("other", world.target)):
        done = world.run(RALLYPOINT, "status", unknown, "-c", target)
        assert (done.returncode, done.stdout) == (69, "")
        assert done.stderr.startswith("rallypoint status: error: no coordinator answers at ")


def lose(world: World, **variables: str) -> Command:
    """Return a node that is cut off: it did its part, and its job has succeeded meanwhile."""
    flags = ("--nnodes=1:2", "--last-call=60", "--lease=1.5", "--rdzv-id=j")
    kept, lost = (start(world, name, *flags, **variables) for name in ("a", "b"))
    workers = world.mailbox.workers(2)
    lost.signal(signal.SIGSTOP)
    for worker in workers:
        if worker.node == "b":
            worker.tell("exit", "0")
    (worker,) = world.mailbox.workers(1, round=2)
    worker.tell("exit", "0")

    assert kept.wait() == 0
    return lost


def test_node_that_was_away_learns_the_outcome(world: World) -> None:
    """The coordinator lingers for it; the agent of the host does not wait for that."""
    lost = lose(world)
    assert len(coordinators(world)) == 1
    lost.signal(signal.SIGCONT)

    assert lost.wait() == 0
    assert lost.events("job_succeeded") != []
    assert world.left() == []


@pytest.mark.parametrize("name", ["j", "other"])
def test_lingering_coordinator_makes_room_for_the_next_job(world: World, name: str) -> None:
    """At once, also with another token; to the node that was away it is no failure."""
    lost = lose(world)
    (before,) = coordinators(world)
    token = {"RALLYPOINT_TOKEN": "secret-of-the-job"}
    following = start(world, "c", "--nnodes=1", f"--rdzv-id={name}", **token)
    worker = next(one for one in world.mailbox.workers(3) if one.node == "c")
    assert coordinators(world) != [before]
    worker.tell("exit", "0")
    assert following.wait() == 0
    lost.signal(signal.SIGCONT)

    assert lost.wait() == 75
    assert "all workers here exited with 0, but the job's outcome is unknown: " in lost.said()[-1]
    assert world.left() == []


def test_no_coordinator_lingers_where_that_is_turned_off(world: World) -> None:
    """By a variable: no process is left when the agents have ended."""
    lost = lose(world, RALLYPOINT_LINGER="0")
    lost.kill()

    assert world.left() == []


@pytest.mark.long
def test_token_of_the_launcher_admits_the_nodes(world: World) -> None:
    """A hosted coordinator asks for it; workers do not get it, and a stray agent ends at once."""
    agents = [start(world, name, RALLYPOINT_TOKEN="secret-of-the-job") for name in ("a", "b")]
    workers = world.mailbox.workers(2)
    stray = start(world, "c")

    assert stray.wait() == 77
    assert not any("RALLYPOINT_TOKEN" in worker.env for worker in workers)
    assert not any("secret-of-the-job" in agent.stderr() for agent in agents)
    finish(world, agents)


@pytest.mark.long
def test_nodes_of_a_slurm_job_need_no_token(world: World) -> None:
    """What Slurm gives to all of them admits them; another job's agent is refused."""
    agents = [start(world, name, SLURM_JOB_ID="7") for name in ("a", "b")]
    world.mailbox.workers(2)
    strays = [
        start(world, "c", SLURM_JOB_ID="8"),
        start(world, "d", SLURM_JOB_ID="7", RALLYPOINT_TOKEN="wrong-secret-of-the-job"),
    ]

    assert [stray.wait() for stray in strays] == [77, 77]
    assert [stray.said() for stray in strays] == [
        [f"{REFUSED} this coordinator is not of this Slurm job: set its RALLYPOINT_TOKEN"],
        [f"{REFUSED} the access token is not one of this coordinator's: check the token file"],
    ]
    finish(world, agents)


@pytest.mark.long
def test_agent_of_a_slurm_job_without_the_token_of_its_nodes(world: World) -> None:
    """The script has drawn one, and this shell of the same job has not got it."""
    secret = {"SLURM_JOB_ID": "7", "RALLYPOINT_TOKEN": "secret-of-the-job"}
    agents = [start(world, name, **secret) for name in ("a", "b")]
    world.mailbox.workers(2)
    stray = start(world, "c", SLURM_JOB_ID="7")

    assert stray.wait() == 77
    assert stray.said() == [
        f"{REFUSED} this coordinator is not of this Slurm job: set its RALLYPOINT_TOKEN"
    ]
    finish(world, agents)


@pytest.mark.long
def test_end_of_the_helper_does_not_end_the_coordinator(world: World) -> None:
    """The agent kills the orphans of its helper; the coordinator is its child, but none of them."""
    agents = [start(world, "a", "--max-restarts=3")]
    pid = agents[0].wait_event("coordinator_started")["pid"]
    agents.append(start(world, "b", "--max-restarts=3"))
    worker = next(one for one in world.mailbox.workers(2) if one.node == "a")
    world.kill(worker.parent)
    world.mailbox.workers(2, round=2)

    assert pid in world.marked()
    assert agents[0].events("coordinator_reached_again") == []
    finish(world, agents, round=2)


def test_coordinator_that_runs_is_used(world: World) -> None:
    """The endpoint is then another name for it, and it stays when the job is over."""
    coordinator = world.coordinator(int(world.target.rpartition(":")[2]), "--startup-window=0")
    agents = [start(world, name) for name in ("a", "b")]
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")

    assert [agent.wait() for agent in agents] == [0, 0]
    assert [agent.events("coordinator_started") for agent in agents] == [[], []]
    assert coordinator.is_running()
    assert world.jobs.get(job_name(world)).HasField("verdict") is False


@pytest.mark.long
def test_workers_that_are_launchers_have_a_job_with_its_coordinator(world: World) -> None:
    """What they inherit neither leads them to the job around them nor keeps its name."""
    port = world.ports.reserve()
    world.ports.close()
    inner = [NODE_AGENT, f"--rdzv-endpoint=localhost:{port}", "--nnodes=2", *PROMPT, OBEDIENT]
    outer = [NODE_AGENT, f"--rdzv-endpoint={world.target}", "--nnodes=2", *PROMPT, "--no-python"]
    agents = [
        world.start(f"agent {name}", [*outer, *inner], {"PET_NODE_NAME": name}) for name in "ab"
    ]
    workers = world.mailbox.workers(2)

    assert {worker.env["RALLYPOINT_JOB_ID"] for worker in workers} == {f"port-{port}"}
    assert {worker.env["RALLYPOINT_COORDINATOR"] for worker in workers} == {f"localhost:{port}"}
    assert {worker.env["MASTER_ADDR"] for worker in workers} == {"127.0.0.1"}
    for worker in workers:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert world.left() == []
    assert kept(world.folder / "state" / "rallypoint") == [FOLDER]


def test_node_that_does_not_host_waits_for_the_one_that_does(world: World) -> None:
    """Its line says for whom, once the wait is longer than nodes usually start one by one."""
    agent = start(world, "b", "--rdzv-conf=is_host=0,join_timeout=8")
    event = agent.wait_event("coordinator_not_reached")

    assert event["hint"].startswith("node 0 (or that with is_host) at 127.0.0.1 hosts it: check ")
    left_s = int(event["then"].split("retrying for ")[1].split(" s")[0])
    assert left_s <= 4
    assert agent.wait() == 75
    assert event["hint"] in agent.said()[-1]
    assert len(agent.events("coordinator_not_reached")) == 1
    assert world.left() == []


def test_endpoint_that_is_misspelled_is_told_at_once(world: World) -> None:
    """Not after the time that nodes usually take to start, and without advice about its host."""
    world.target = "no.such.invalid:29400"
    agent = start(world, "a", "--join-timeout=8")
    event = agent.wait_event("coordinator_not_reached")

    assert event["why"] == "no.such.invalid cannot be resolved: is it spelled right?"
    assert int(event["then"].split("retrying for ")[1].split(" s")[0]) > 4
    assert "hint" not in event
    assert agent.wait() == 75
    assert agent.said()[-1].endswith(f"the last answer: {event['why']}")
    assert world.left() == []


@pytest.mark.long
def test_interrupted_job_leaves_nothing(world: World) -> None:
    """Ctrl-C on both nodes ends the job, and then its coordinator."""
    agents = [start(world, name) for name in ("a", "b")]
    world.mailbox.workers(2)
    with Jobs(world.target) as jobs:
        assert len(jobs.page().jobs) == 1
    for agent in agents:
        agent.signal(signal.SIGINT)

    assert [agent.wait() for agent in agents] == [130, 130]
    assert world.left() == []
    assert kept(world.folder / "state" / "rallypoint") == [FOLDER]
