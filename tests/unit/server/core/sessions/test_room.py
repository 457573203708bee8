"""Which jobs are forgotten when there is room for no other, and which sessions count as a load."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from rallypoint.server.core.messages.records import JobForgotten
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import JobSpec, Timing
from rallypoint.server.core.sessions import admission
from rallypoint.server.core.state.deadlines import OF_JOBS
from support.core.coordinator import Bench
from support.core.fake_agents import FakeAgent, finished

GRACE_MS = 500
MONTH_MS = 30 * 86_400_000
SQUATTER = JobSpec(min_nodes=2, max_nodes=2, join_timeout_ms=MONTH_MS)
SINGLE = JobSpec(join_timeout_ms=MONTH_MS)
FENCED = JobSpec(join_timeout_ms=MONTH_MS, fence_after_ms=60_000)


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "JOBS_MAX", 3)


def squat(bench: Bench, job_id: str) -> None:
    """Open a job whose only node vanishes at once."""
    (agent,) = bench.join("a", job_id=job_id, spec=SQUATTER)
    agent.break_off()
    agent.beats = False
    bench.advance(GRACE_MS)


def crash(bench: Bench, job_id: str, spec: JobSpec = SINGLE) -> FakeAgent:
    """Run a round of one node, which vanishes."""
    (agent,) = bench.run_round("a", job_id=job_id, spec=spec)
    agent.break_off()
    agent.beats = False
    bench.advance(GRACE_MS)
    return agent


def end(bench: Bench, job_id: str) -> None:
    """Run a job to its end."""
    (agent,) = bench.run_round("a", job_id=job_id, spec=SINGLE)
    agent.succeed()
    finished(agent)
    agent.goodbye()
    bench.advance(1)


def forgotten(bench: Bench) -> list[str]:
    return [str(record.job_id) for record in bench.records if isinstance(record, JobForgotten)]


@pytest.mark.parametrize(("part", "count"), [(64, 1), (1, 3)])
def test_job_that_nobody_joined_blocks_no_other(
    monkeypatch: pytest.MonkeyPatch, part: int, count: int
) -> None:
    """A part of such jobs is forgotten when the room is needed, the oldest first."""
    monkeypatch.setattr(admission, "FORGOTTEN_PART", part)
    bench = Bench(SINGLE)
    for job_id in ("x2", "x1", "x3"):
        squat(bench, job_id)
    assert [] == forgotten(bench)

    bench.run_round("a", job_id="good")

    assert ["x2", "x1", "x3"][:count] == forgotten(bench)
    assert ["job_forgotten"] * count == [event for event in bench.events() if "forgotten" in event]
    gone = set(forgotten(bench))
    deadlines = bench.state.deadlines.items()
    assert not [key for key, _ in deadlines if key[0] in OF_JOBS and key[1] in gone]


@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        ((end, crash, squat), "3"),
        ((end, crash, crash), "1"),
        ((crash, end, end), "2"),
        ((crash, crash, crash), "1"),
    ],
)
def test_order_of_forgetting(fill: tuple[Callable[[Bench, str], None], ...], expected: str) -> None:
    """Jobs without a round, then ended ones, then those that lost all nodes; the oldest first."""
    bench = Bench(SINGLE)
    for number, make in enumerate(fill, 1):
        make(bench, str(number))
    bench.run_round("a", job_id="good")

    assert [expected] == forgotten(bench)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [((crash, end, end), ["2", "3"]), ((crash, crash, crash), ["1"])],
)
def test_open_job_is_forgotten_only_if_it_must_be(
    monkeypatch: pytest.MonkeyPatch,
    fill: tuple[Callable[[Bench, str], None], ...],
    expected: object,
) -> None:
    """Its nodes may return: it goes alone, and only where there are no other idle jobs."""
    monkeypatch.setattr(admission, "FORGOTTEN_PART", 1)
    bench = Bench(SINGLE)
    for number, make in enumerate(fill, 1):
        make(bench, str(number))
    bench.run_round("a", job_id="good")

    assert expected == forgotten(bench)


def test_job_with_a_session_is_never_forgotten() -> None:
    """Also while its connection is broken, within the grace; then the new job is refused."""
    bench = Bench(SINGLE)
    for job_id in ("1", "2", "3"):
        (agent,) = bench.join("a", job_id=job_id, spec=SQUATTER)
    agent.break_off()
    refusal = bench.agent("a", job_id="good").hello().refusal

    assert refusal is not None
    assert (("limit", "jobs"), ("value", 3)) == refusal.facts


def test_fenced_job_is_not_forgotten() -> None:
    """Its next round has to know that workers of a lost node may still run."""
    bench = Bench(SINGLE)
    for job_id in ("1", "2", "3"):
        crash(bench, job_id, FENCED)
    refused = bench.agent("a", job_id="good").hello().refusal
    bench.advance(2 * FENCED.fence_after_ms)
    taken = bench.agent("a", job_id="good").hello().refusal

    assert refused is not None
    assert taken is None


def test_node_of_a_forgotten_job_may_return() -> None:
    """It opens its job again, in its run and with a higher round."""
    bench = Bench(SINGLE)
    gone = [crash(bench, job_id) for job_id in ("1", "2", "3")]
    bench.run_round("a", job_id="good")
    gone[0].clean = gone[0].last_round
    assert gone[0].hello().refusal is None

    job = bench.job("1")
    assert (Phase.RUNNING, 1, 2) == (job.phase, job.run, job.round_number)


def test_only_sessions_that_send_heartbeats_count_as_a_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Newcomers that never did anything change no interval and no lease; heartbeats count."""
    monkeypatch.setattr(admission, "JOBS_MAX", 20)
    bench = Bench(SINGLE, timing=Timing(heartbeats_per_s_max=5))
    good = bench.run_round("a", job_id="good")[0].identity.spec
    idle = [bench.join("a", job_id=str(i), spec=SQUATTER)[0] for i in range(9)]
    for agent in idle:
        agent.beats = False
    before = bench.state.heartbeat_ms(good), bench.state.lease_ms(good)
    for agent in idle:
        agent.heartbeat()
    after = bench.state.heartbeat_ms(good), bench.state.lease_ms(good)
    for agent in idle:
        agent.break_off()
    bench.advance(20_000)

    assert (1_000, 5_000) == before
    assert (2_000, 6_000) == after
    assert 1 == bench.state.heard == sum(node.is_heard for node in bench.state.nodes.values())


def test_newcomers_that_vanish_do_not_make_the_network_suspect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many: a node of another job that breaks off is lost after its grace."""
    monkeypatch.setattr(admission, "JOBS_MAX", 20)
    bench = Bench(replace(SINGLE, min_nodes=2, max_nodes=2))
    _, b = bench.run_round("a", "b", job_id="good")
    for number in range(8):
        (squatter,) = bench.join("a", job_id=f"x{number}", spec=SQUATTER)
        squatter.break_off()
        squatter.beats = False
    b.break_off()
    b.beats = False
    bench.advance(GRACE_MS)

    assert b.node is None
    assert "network_suspected" not in bench.events()
