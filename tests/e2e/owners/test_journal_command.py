"""`rallypoint journal` on a store in etcd: beside its coordinators, and on the way there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from rallypoint.v1 import event_service_pb2 as events_pb2
from rallypoint.v1 import event_service_pb2_grpc as events_grpc
from rallypoint.v1 import job_pb2
from support.etcd.coordinators import Coordinators, until_job
from support.journal.shown import events_in
from support.processes.commands import RALLYPOINT, Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs, is_started, pids
from support.processes.world import NEW, World


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
    """Start a job of two nodes; its first round fails, its second one runs."""
    agents = [world.agent(name, "--max-restarts=3", nnodes="2") for name in "ab"]
    world.mailbox.workers(2)[1].tell("exit", "3")
    world.mailbox.workers(2, round=2)
    return agents


def is_back(job: job_pb2.Job) -> bool:
    return is_started(job, 2) and all(node.attached for node in job.nodes)


def events_after(jobs: Jobs, job_id: str, sequence: int) -> list[events_pb2.Event]:
    """Return the events of a job after one that a reader has seen."""
    stub = events_grpc.EventServiceStub(jobs.channel)
    request = events_pb2.ListEventsRequest(job_id=job_id, after_sequence=sequence)
    return list(stub.ListEvents(request, timeout=LIMIT_S).events)


def check_same(before: job_pb2.Job, after: job_pb2.Job) -> None:
    """The round, its workers and what was counted are the same."""
    assert before.round.header == after.round.header
    assert (pids(before), before.restart_count) == (pids(after), after.restart_count)
    assert [run.number for run in before.history] == [run.number for run in after.history]


@pytest.mark.long
def test_job_moves_to_etcd(world: World, on_one: Coordinators, tmp_path: Path) -> None:
    """From one coordinator with a file to two on etcd: its workers run on, a reader of its events
    continues, and the next failure is counted on top. There is no way back."""
    port = world.ports.reserve()
    first = f"sqlite:{tmp_path / 'one' / 'journal.sqlite'}"
    there, back = str(tmp_path / "there.jsonl"), str(tmp_path / "back.jsonl")
    coordinator = world.coordinator(port, f"--state={first}", *NEW)
    agents = start_job(world)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    seen = events_after(world.jobs, world.job_id, 0)
    coordinator.signal(signal.SIGTERM)
    assert coordinator.wait() == 0

    journal(world, "export", first, there)
    imported = journal(world, "import", there, on_one.place)
    seats = [on_one.start(f"--port={port}"), on_one.start()]
    on_one.settle(*seats)
    moved = until_job(seats[0], world.job_id, is_back)
    new = events_after(seats[1].jobs, world.job_id, seen[-1].sequence)
    journal(world, "export", on_one.place, back)
    second = f"sqlite:{tmp_path / 'two' / 'journal.sqlite'}"
    refused = world.run(RALLYPOINT, "journal", "import", back, second)

    assert imported.endswith(f" of 16 shards into {on_one.place}\n")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "shards cannot become one journal again" in refused.stderr
    check_same(before, moved)
    assert new and min(one.sequence for one in new) > seen[-1].sequence
    world.mailbox.workers(2, round=2)[0].kill()
    again = world.mailbox.workers(2, round=3)
    assert [worker.restart_count for worker in again] == [2, 2]
    for worker in again:
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]


@pytest.mark.long
def test_store_is_looked_at_beside_its_coordinators(
    world: World, on_one: Coordinators, tmp_path: Path
) -> None:
    """All shards are checked, shown and exported while two coordinators serve; nothing is imported
    over them. New coordinators on a copy are the same ones."""
    seats = on_one.start_many(2)
    agents = start_job(world)
    before = until_job(seats[0], world.job_id, lambda job: is_started(job, 2))
    token = world.mailbox.workers(2, round=2)[0].env["RALLYPOINT_WORKER_TOKEN"]
    backup, copy = str(tmp_path / "backup.jsonl"), f"{on_one.place}/copy"

    found = facts(world, on_one.place)
    shown = journal(world, "show", on_one.place, "--job", world.job_id)
    journal(world, "export", on_one.place, backup)
    refused = world.run(RALLYPOINT, "journal", "import", backup, on_one.place)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert seats[0].address in refused.stderr and "stop them" in refused.stderr
    ports = [seat.address.rpartition(":")[2] for seat in seats]
    for seat in seats:
        seat.command.kill()
    journal(world, "import", backup, copy)
    on_one.place = copy
    again = [on_one.start(f"--port={port}") for port in ports]
    on_one.settle(*again)
    check_same(before, until_job(again[0], world.job_id, is_back))

    assert (found["shards"], found["jobs"]) == ("16", "1 (1 running)")
    records = [json.loads(line) for line in shown.splitlines()]
    assert len({record["shard"] for record in records}) == 1
    reasons = [event["reason"] for event in events_in(records)]
    sealed = [reason for reason in reasons if reason.startswith("round_se")]
    assert sealed == ["round_sealed", "round_settled", "round_sealed"]
    assert token not in shown
    for worker in world.mailbox.workers(2, round=2):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
