"""How long a verdict stays: until another round fails, and in the history of its round."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.api.jobs.picture import job_message
from rallypoint.server.core.model.desired import DesiredFinished
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.wire.durations import to_ms
from support.core.coordinator import Bench
from support.core.fake_agents import stop_reason, worker_exit

SPEC = JobSpec(min_nodes=1, max_nodes=2, max_restarts=3, restart_backoff_ms=0, last_call_ms=0)
GROWING = replace(SPEC, grow_after_ms=1_000, settle_time_ms=0)
TAIL = "Traceback (most recent call last):\n  boom\n"


def failed_once() -> Bench:
    """Return a job whose second round runs, after a failure of rank 0 with output."""
    bench = Bench(replace(SPEC, max_nodes=1))
    (agent,) = bench.run_round("a")
    agent.fail(replace(worker_exit(3, said="ValueError: boom"), stderr_tail=TAIL, ago_ms=500))
    bench.obey()
    assert Phase.RUNNING is bench.job().phase
    return bench


def test_verdict_outlives_success() -> None:
    """A job that failed and then succeeded still shows what had failed; its agents do not."""
    bench = failed_once()
    (agent,) = bench.agents.values()
    agent.succeed()

    assert (Outcome.SUCCEEDED, 1) == (bench.job().outcome, bench.the_verdict().round)
    assert Consequence.RESTARTED is bench.the_verdict().consequence
    assert isinstance(agent.desired, DesiredFinished)
    assert agent.desired.verdict is None
    assert [1, None] == [
        None if summary.verdict is None else summary.verdict.round
        for summary in bench.job().history
    ]


def test_verdict_outlives_growth() -> None:
    """A round that only grows is stopped for that reason, and the verdict stays."""
    bench = Bench(GROWING)
    (first,) = bench.run_round("a")
    first.fail(worker_exit(3))
    bench.obey()
    bench.join("b")
    bench.advance(2 * GROWING.grow_after_ms)

    assert (1, "new nodes join") == (bench.the_verdict().round, getattr(first.desired, "text", ""))
    bench.obey()
    assert ["a", "b"] == bench.order()
    assert 1 == bench.the_verdict().round


def test_stop_names_its_own_reason() -> None:
    """The verdict of an earlier round explains no later stop."""
    bench = Bench(SPEC)
    a, b = bench.run_round("a", "b")
    a.fail(worker_exit(3))
    bench.obey()
    b.goodbye("had enough")

    assert 2 == bench.the_verdict().round
    assert "had enough" in bench.the_verdict().text
    assert stop_reason(a) is not None
    bench.obey()
    assert [1, 2] == [s.verdict.round for s in bench.job().history if s.verdict is not None]


def test_history_keeps_no_output() -> None:
    """The latest verdict has the output of the culprit; those of the history do not."""
    bench = failed_once()
    latest, (summary,) = bench.the_verdict(), bench.job().history

    assert latest.culprit is not None
    assert TAIL == latest.culprit.exit.stderr_tail
    assert summary.verdict is not None
    assert summary.verdict.culprit is not None
    kept = summary.verdict.culprit.exit
    assert (3, "", "ValueError: boom") == (
        kept.exit_code,
        kept.stderr_tail,
        kept.error.message if kept.error else None,
    )


def test_node_keeps_no_output() -> None:
    """What workers wrote is kept by the round, for the failures that matter, and not twice."""
    bench = Bench(SPEC)
    a, _ = bench.run_round("a", "b")
    a.fail(replace(worker_exit(3, said="ValueError: boom"), stderr_tail=TAIL))

    (exit,) = a.known_node.exits
    assert (3, "") == (exit.exit_code, exit.stderr_tail)
    assert exit.error is not None
    assert "" == exit.error.message


def test_age_of_an_exit_grows() -> None:
    """A reader learns how long ago a worker ended, not how long before its report."""
    bench = failed_once()
    bench.advance(60_000)

    message = job_message(bench.state, bench.job(), bench.now_ms)
    assert 60_500 == to_ms(message.verdict.culprit.exit.age)
    assert 60_500 == to_ms(message.history[0].verdict.culprit.exit.age)


def test_abandoned_run_was_not_re_formed() -> None:
    """When no node is left, the verdict does not claim that the run was re-formed."""
    bench = Bench(SPEC)
    (agent,) = bench.run_round("a")
    agent.goodbye("had enough")

    assert Outcome.ABANDONED is bench.job().outcome
    assert Consequence.ABANDONED is bench.the_verdict().consequence
