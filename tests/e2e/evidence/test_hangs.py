"""A job that stands still is suspected, with the rank that the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.v1 import job_pb2, round_pb2, verdict_pb2
from support.processes.commands import RALLYPOINT, Command
from support.processes.world import World

HANGING = Path(__file__).with_name("hanging.py")
CULPRIT = 2
NODES, WORKERS = 2, 2
READY_S_MAX = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "marks"
    made.mkdir()
    return made


def start(world: World, folder: Path, *flags: str) -> list[Command]:
    """Start a job of which a rank stands still after some steps."""
    script = (str(HANGING), str(folder), str(CULPRIT))
    return [
        world.agent(name, "--hang-after=4", *flags, nnodes=str(NODES), nproc=WORKERS, script=script)
        for name in ("a", "b")
    ]


def show(world: World, command: str) -> str:
    """Return what a command prints about the job, as one line."""
    ended = world.run(RALLYPOINT, command, world.job_id, "-c", world.target)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    return " ".join(ended.stdout.split())


def node_of(job: job_pb2.Job, rank: int) -> str:
    """Return the name of the node of a rank."""
    (name,) = (
        node.name for node in job.nodes if any(worker.rank == rank for worker in node.workers)
    )
    return name


def test_suspicion_names_the_rank_and_ends_with_progress(world: World, folder: Path) -> None:
    """Nothing is stopped. Every agent logs it once, and the commands show it."""
    agents = start(world, folder)
    for agent in agents:
        line = agent.wait_event("hang_suspected", limit_s=READY_S_MAX)
        assert f"rank {CULPRIT} has not entered" in line["why"]
    job = world.jobs.wait(world.job_id, lambda job: job.hang.HasField("rank"))

    assert (CULPRIT, node_of(job, CULPRIT)) == (job.hang.rank, job.hang.node_name)
    assert "load_batch" in job.hang.text
    assert 4 <= job.hang.still_for.ToTimedelta().total_seconds()
    assert job_pb2.WAIT_KIND_HANG == job.waiting.kind
    explained = show(world, "explain")
    assert "is suspected to hang: no worker has made progress for" in explained
    assert f"rank {CULPRIT} has not entered" in explained
    assert f"rank {CULPRIT} has not entered" in show(world, "status")

    (folder / "go").touch()
    for agent in agents:
        agent.wait_event("hang_ended")
    job = world.jobs.wait(world.job_id, lambda job: not job.HasField("hang"))
    assert (1, job_pb2.JOB_PHASE_RUNNING) == (job.round.header.number, job.phase)
    events = show(world, "events")
    assert events.index("hang suspected") < events.index("hang over")

    (folder / "end").touch()
    assert [0, 0] == [agent.wait() for agent in agents]
    assert [1, 1] == [len(agent.events("hang_suspected")) for agent in agents]
    assert 0 == world.jobs.get(world.job_id).restart_count


def test_hang_is_restarted(world: World, folder: Path) -> None:
    """The round is stopped with the rank in its verdict; the next one trains."""
    agents = start(world, folder, "--hang-action=restart", "--max-restarts=1")
    for agent in agents:
        agent.wait_event("round_stopped", limit_s=READY_S_MAX)
    (folder / "end").touch()
    assert [0, 0] == [agent.wait(READY_S_MAX) for agent in agents]

    job = world.jobs.get(world.job_id)
    assert (job_pb2.OUTCOME_SUCCEEDED, 1) == (job.outcome, job.restart_count)
    first, *_ = job.history
    assert round_pb2.ROUND_REASON_HUNG == first.end_reason
    assert verdict_pb2.VERDICT_CAUSE_HUNG == first.verdict.cause
    assert first.verdict.node_name in ("a", "b")
    assert "no worker made progress for" in first.verdict.text
    assert f"rank {CULPRIT} has not entered" in first.verdict.text
    assert "load_batch" in first.verdict.text
    assert "hung" in show(world, "verdict")
