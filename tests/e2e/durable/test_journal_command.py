"""`rallypoint journal` on the journals of real coordinators, running and killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.journal.shown import events_in
from support.processes.commands import RALLYPOINT, Command
from support.processes.jobs import is_started, pids
from support.processes.world import NEW, World

FLAGS = ("--last-call=60", "--max-restarts=3")


@pytest.fixture
def port(world: World) -> int:
    """A port that no other process gets while the coordinator is down."""
    return world.ports.reserve()


@pytest.fixture
def state(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'state' / 'journal.sqlite'}"


def journal(world: World, *words: str) -> str:
    """Run a command that succeeds; return what it prints."""
    done = world.run(RALLYPOINT, "journal", *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def facts(world: World, state: str) -> dict[str, str]:
    """Return what `verify` prints."""
    lines = journal(world, "verify", state).splitlines()
    return {name: value for name, value in (line.split(maxsplit=1) for line in lines)}


def start_job(world: World) -> list[Command]:
    """Start a job of two nodes; return when its first round has failed and the second one runs."""
    agents = [world.agent(name, *FLAGS, nnodes="2") for name in "ab"]
    world.mailbox.workers(2)[1].tell("exit", "3")
    world.mailbox.workers(2, round=2)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    return agents


def test_journal_of_a_running_coordinator(
    world: World, port: int, state: str, tmp_path: Path
) -> None:
    """It is checked, shown and exported while the coordinator serves. A coordinator on what was
    imported, after the loss of the journal, is the same one: no worker is restarted."""
    coordinator = world.coordinator(port, f"--state={state}", *NEW)
    agents = start_job(world)
    before = world.jobs.get(world.job_id)
    token = world.mailbox.workers(2, round=2)[0].env["RALLYPOINT_WORKER_TOKEN"]

    found = facts(world, state)
    shown = journal(world, "show", state, "--job", world.job_id)
    backup, other = tmp_path / "backup.jsonl", f"sqlite:{tmp_path / 'other' / 'journal.sqlite'}"
    journal(world, "export", state, str(backup))
    coordinator.kill()
    for file in (tmp_path / "state").iterdir():
        file.unlink()
    journal(world, "import", str(backup), other)
    world.coordinator(port, f"--state={other}")
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))

    assert found["jobs"] == "1 (1 running)"
    records = [json.loads(line) for line in shown.splitlines()]
    reasons = [event["reason"] for event in events_in(records)]
    sealed = [reason for reason in reasons if reason.startswith("round_se")]
    assert sealed == ["round_sealed", "round_settled", "round_sealed"]
    assert {"job_snapshot", "job_noted", "node_joined"} <= {one["kind"] for one in records}
    secret = json.loads(backup.read_text().splitlines()[0])["secret"]
    assert token not in shown and secret not in shown
    assert backup.stat().st_mode & 0o777 == 0o600
    assert pids(before) == pids(after)
    assert before.round.header == after.round.header
    assert (before.restart_count, after.restart_count) == (1, 1)
    for worker in world.mailbox.workers(2, round=2):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


def test_journal_of_a_killed_coordinator(world: World, port: int, state: str) -> None:
    """What was visible is in it, although nothing was closed; looking at it changes nothing."""
    coordinator = world.coordinator(port, f"--state={state}", *NEW)
    agents = start_job(world)
    coordinator.kill()

    first, second = facts(world, state), facts(world, state)
    world.coordinator(port, f"--state={state}")
    for worker in world.mailbox.workers(2, round=2):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]

    assert first == second
    assert first["jobs"] == "1 (1 running)"
    world.jobs.wait(world.job_id, lambda job: job.outcome != 0)
    assert facts(world, state)["jobs"] == "1 (1 closed)"
    assert int(facts(world, state)["epoch"]) > int(first["epoch"])
