"""When one worker fails and the others follow, the verdict names the first."""

import json
import sys
from pathlib import Path

import pytest

from support.processes.world import WORKERS, World

VERDICTS = Path(__file__).parents[3] / "benchmarks" / "verdicts.py"


@pytest.mark.nightly  # each kind has its own tests, on the core and below
def test_small_run_of_the_benchmark(world: World) -> None:
    """The culprit is found whether its victims fail after it or before it."""
    path = world.folder / "verdicts.json"
    done = world.run(sys.executable, str(VERDICTS), "--cascades=10", f"--json={path}")

    assert done.returncode == 0, done.stderr
    cascades = json.loads(path.read_text())["cases"]
    kinds = [cascade["kind"] for cascade in cascades]
    assert kinds[:6] == ["exception", "recorded", "segv", "kill", "exit", "teardown"]
    assert kinds[6:9] == ["hung", "hung elsewhere", "recorded teardown"]
    assert kinds[9] in ("oom", "exception")  # as far as this machine lets us run out of memory
    assert [cascade["early"] for cascade in cascades][:6] == [False, True] * 3
    assert all(cascade["named"] == cascade["culprit"] for cascade in cascades), done.stderr


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
