"""The desired states of nodes, many jobs side by side, and the replay of the journal."""

from __future__ import annotations

from msgspec.structs import replace

from rallypoint.server.core.memory.replay import replay, snapshot
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Acknowledge, JobChanged, Notify, Send, Welcome
from rallypoint.server.core.messages.records import EventsLogged, JobNoted
from rallypoint.server.core.model.desired import DesiredRun, DesiredStandby, DesiredStop
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.core.model.spec import JobSpec
from support.core.coordinator import Bench
from support.core.decisions import RoundStopped
from support.core.fake_agents import finished

PAIR = JobSpec(min_nodes=2, max_nodes=2, max_restarts=5)


def test_a_node_is_told_every_state_once_with_a_growing_revision() -> None:
    """Over a whole life each change is one message, and each message has a higher revision."""
    bench = Bench(PAIR)
    a, b = bench.run_round("a", "b")
    b.fail()
    bench.obey()
    a.succeed()
    b.succeed()

    sent = [e for e in bench.effects if isinstance(e, Send) and e.session == a.session]

    kinds = [DesiredStandby, DesiredRun, DesiredStop, DesiredRun]
    assert kinds == [type(send.desired) for send in sent[:-1]]
    assert list(range(1, 6)) == [send.revision for send in sent]
    assert Outcome.SUCCEEDED is finished(a).outcome


def test_a_clean_member_is_told_nothing_until_its_round_is_settled() -> None:
    """A Stop holds for nodes that are clean as well: Standby comes only with a pause after it."""
    bench = Bench(replace(PAIR, restart_backoff_ms=1_000))
    a, b = bench.run_round("a", "b")
    for _ in range(3):  # the first two restarts are immediate
        b.fail()
        bench.obey(a)
        assert isinstance(a.desired, DesiredStop)
        bench.obey()

    assert Phase.FORMING is bench.job().phase
    assert [DesiredStandby(spare=False)] * 2 == [agent.desired for agent in (a, b)]


def test_welcome_comes_before_what_is_told() -> None:
    """A Hello is answered by Welcome and then by the desired state, changed or not."""
    bench = Bench(PAIR)
    (a,) = bench.join("a")

    again = a.hello()

    sent = [type(e) for e in again.effects if not isinstance(e, JobChanged)]
    assert [Welcome, Send] == sent
    assert [1] == [e.revision for e in again.effects if isinstance(e, Send)]


def test_revision_goes_on_above_what_the_agent_applied() -> None:
    """A coordinator that has never seen the agent continues from the agent's revision."""
    bench = Bench(PAIR)
    a = bench.agent("a")
    a.revision = 41

    a.hello()

    assert 42 == a.known_node.revision


def test_acknowledgement_is_the_first_effect() -> None:
    """A report is acknowledged, and with its consequences: both follow the same append."""
    bench = Bench(PAIR)
    a, _ = bench.run_round("a", "b")

    failed = a.fail()

    assert isinstance(failed.effects[0], Acknowledge)
    assert [RoundStopped, EventsLogged] == [type(record) for record in failed.records]


def test_spares_are_told_what_they_are() -> None:
    """A node without a place is a spare while a round runs, and only then."""
    bench = Bench(PAIR)
    a, _ = bench.run_round("a", "b")
    (z,) = bench.join("z")
    assert DesiredStandby(spare=True) == z.desired

    a.fail()
    assert DesiredStandby(spare=False) == z.desired

    bench.obey()
    assert DesiredStandby(spare=True) == z.desired


def test_spares_of_the_seal_are_told_too() -> None:
    """A ready node without a place gets its Standby when the round is sealed."""
    bench = Bench(PAIR, window_ms=2_500)
    agents = bench.join("a", "b", "z")

    bench.advance(2_500)

    assert [DesiredRun, DesiredRun, DesiredStandby] == [type(agent.desired) for agent in agents]
    assert DesiredStandby(spare=True) == agents[2].desired


def test_members_share_one_header() -> None:
    """All members share one round header object, so the memory of a round does not grow."""
    bench = Bench(PAIR)
    a, b = bench.join("a", "b")

    assert isinstance(a.desired, DesiredRun) and isinstance(b.desired, DesiredRun)
    assert a.desired.header is b.desired.header


def test_records_per_round_are_few() -> None:
    """The stop, the seal and the start of a round have a note each, however many nodes it has.

    Besides, each step of it that readers see has one record of its events.
    """
    bench = Bench(JobSpec(min_nodes=8, max_nodes=8, max_restarts=1))
    agents = bench.run_round(*(f"n{n}" for n in range(8)))
    before = len(bench.records)
    agents[0].fail()
    bench.obey()

    kinds = [type(record) for record in bench.records[before:]]
    decisions = [kind for kind in kinds if kind is not EventsLogged]
    assert [JobNoted] * 3 == decisions
    assert kinds.count(EventsLogged) == 3  # stopped; settled and sealed; started


def test_jobs_do_not_affect_each_other() -> None:
    """Failures, losses and ends of one job send nothing to the nodes of another."""
    bench = Bench(PAIR)
    jobs = [bench.run_round("a", "b", job_id=f"job{n}") for n in range(5)]
    watched = [(agent, agent.revision) for agents in jobs[3:] for agent in agents]
    bench.effects.clear()

    jobs[0][0].fail()
    jobs[1][0].goodbye()
    for agent in jobs[2]:
        agent.succeed()
    bench.take(inputs.JobBroken(jobs[1][0].identity.job_id, "report"))
    bench.obey()
    bench.advance(60_000)

    assert [revision for _, revision in watched] == [agent.revision for agent, _ in watched]
    touched = {e.job_id for e in bench.effects if isinstance(e, JobChanged)}
    assert {"job0", "job1", "job2"} == touched
    assert [Phase.RUNNING] * 2 == [bench.job(f"job{n}").phase for n in (3, 4)]


def test_one_name_in_two_jobs() -> None:
    """Names and node ranks are unique within a job, not among jobs."""
    bench = Bench(PAIR)

    bench.join("a", job_id="one", node_rank=0)
    bench.join("a", job_id="two", node_rank=0)

    assert 2 == len(bench.state.nodes)


def test_journal_gives_everything_back() -> None:
    """The replay of all records, or of a snapshot, equals what is durable about the state."""
    bench = Bench(JobSpec(min_nodes=2, max_nodes=3, max_restarts=2))
    a, b = bench.run_round("a", "b")
    bench.advance(60_000)
    bench.join("c")
    bench.advance(5_000)
    bench.obey()
    b.fail()
    bench.obey()
    b.goodbye()
    bench.obey()
    a.succeed()

    memory = replay(bench.records)

    bench.check_journal()
    assert memory == replay(snapshot(memory))
    assert any(isinstance(effect, Notify) for effect in bench.effects)


def test_changes_are_announced_in_order() -> None:
    """Readers hear of every change of a job, in the order in which it happened."""
    bench = Bench(PAIR)
    a, b = bench.run_round("a", "b")
    b.break_off()
    b.hello(held=b.held_round())
    b.break_off()
    bench.advance(500)
    bench.obey()
    a.goodbye()

    assert [
        "run_opened",
        "node_joined",
        "node_joined",
        "round_sealed",
        "round_started",
        "node_disconnected",
        "node_resumed",
        "node_disconnected",
        "node_lost",
        "round_stopped",
        "round_settled",
        "node_left",
        "run_closed",
    ] == bench.events()


def test_heartbeat_costs_a_deadline_and_nothing_else() -> None:
    """A heartbeat changes the node's lease only, without a record or an effect.

    Only the first one also shows that the Welcome has arrived.
    """
    bench = Bench(PAIR)
    (a,) = bench.join("a")
    a.heartbeat()
    bench.advance(700)

    beat = a.heartbeat()

    assert ((), (), {}, {}, 1) == (
        beat.records,
        beat.effects,
        beat.delta.jobs,
        beat.delta.nodes,
        len(beat.delta.deadlines),
    )
