"""When one worker fails and the others follow, the verdict names the first."""

import json
import re
import sys
from pathlib import Path

import pytest

from rallypoint.v1 import verdict_pb2
from support.processes.world import WORKERS, World

VERDICTS = Path(__file__).parents[3] / "benchmarks" / "verdicts.py"


@pytest.mark.nightly  # each kind has its own tests, on the core and below
def test_small_run_of_the_benchmark(world: World) -> None:
    """The culprit is found whether its victims fail after it or before it."""
    path = world.folder / "verdicts.json"
    done = world.run(sys.executable, str(VERDICTS), "--cascades=10", f"--json={path}")

    assert done.returncode == 0, done.stderr
    cascades = json.loads(path.read_text())["cascades"]
    kinds = [cascade["kind"] for cascade in cascades]
    assert kinds[:6] == ["exception", "recorded", "segv", "kill", "exit", "teardown"]
    assert kinds[6:9] == ["hung", "hung elsewhere", "recorded teardown"]
    assert kinds[9] in ("oom", "exception")  # as far as this machine lets us run out of memory
    assert [cascade["early"] for cascade in cascades][:6] == [False, True] * 3
    assert all(cascade["named"] == cascade["culprit"] for cascade in cascades), done.stderr


def test_recorded_error_outranks_our_signal(world: World) -> None:
    """A worker that recorded its error before it was stopped is the culprit."""
    agents = [world.agent(name, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    workers[3].tell("record", "loss is nan")
    workers[3].tell("say", "recorded")
    agents[1].wait_text("recorded")
    for worker in workers[:2]:
        worker.tell("raise", "Connection reset by peer")

    assert [agent.wait() for agent in agents] == [1, 1]
    verdict = world.jobs.get(world.job_id).verdict
    assert (verdict.culprit.rank, verdict.culprit.exit.signal) == (3, 15)
    assert verdict.culprit.exit.agent_signalled_first
    # The record may be found before the others end.
    assert re.fullmatch(
        r"(rank [01] on node a was reported first, but its error is typical of a lost peer: "
        r"RuntimeError: Connection reset by peer; )?"
        r"it recorded its error \d+\.\d s before the stop signal",
        verdict.evidence,
    )
    report = agents[0].stderr()
    for line in (
        "  rank      : 3 (local_rank: 1)",
        f"  exitcode  : 1 (pid: {workers[3].pid})",
        "  traceback : loss is nan",
        "  collateral: 2 more failed:",
        "    ranks 0-1: exit code 1",
        "      RuntimeError: Connection reset by peer",
    ):
        assert line in report.splitlines()
    (group,) = [group for group in verdict.groups if group.victim]
    assert [(span.first, span.last) for span in group.ranks] == [(0, 1)]


@pytest.mark.long
def test_what_gloo_says_of_a_peer_is_not_the_cause(world: World) -> None:
    """With real torch, a worker that lost its peer is not blamed, whichever is reported first."""
    script = [str(WORKERS / "closing.py")]
    agents = [world.agent(name, nnodes="2", script=script) for name in ("a", "b")]

    assert [agent.wait() for agent in agents] == [1, 1]
    verdict = world.jobs.get(world.job_id).verdict
    (victim,) = verdict.collateral
    assert (verdict.culprit.rank, verdict.culprit.exit.error.message) == (
        1,
        "ValueError: loss is nan",
    )
    assert (victim.rank, verdict.groups[0].victim ^ verdict.groups[1].victim) == (0, True)
    (group,) = [group for group in verdict.groups if group.victim]
    assert "gloo/transport/tcp/pair.cc" in group.error
    if verdict.groups[0].victim:
        assert verdict.evidence.startswith("rank 0 on node a was reported first, but its error ")


def test_worker_that_is_stopped_with_the_others_is_no_failure(world: World) -> None:
    """A worker that our signal ended, without a recorded error, is not in the verdict."""
    agents = [world.agent(name, nnodes="2", nproc=2) for name in ("a", "b")]
    workers = world.mailbox.workers(4)
    workers[0].tell("raise", "Connection reset by peer")

    assert [agent.wait() for agent in agents] == [1, 1]
    verdict = world.jobs.get(world.job_id).verdict
    assert (verdict.culprit.rank, verdict.collateral_count) == (0, 0)
    assert verdict.evidence.endswith("but no other worker reported a cause")
    assert verdict.consequence == verdict_pb2.VERDICT_CONSEQUENCE_BUDGET_SPENT
