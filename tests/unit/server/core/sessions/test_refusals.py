"""Each refusal has its facts; the bench checks that a refused input changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rallypoint.base.addresses import is_loopback
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Acknowledge, Refuse, Welcome
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.ids import JobId, NodeName, SessionId
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Phase
from rallypoint.server.core.model.spec import HangAction, JobSpec, Timing
from rallypoint.server.core.sessions import admission
from rallypoint.server.core.sessions.admission import HEARD_MS, compare_specs
from rallypoint.server.core.step import Transition
from support.core.coordinator import EPOCH, Bench
from support.core.decisions import RoundStopped
from support.core.fake_agents import JOB, FakeAgent

TRIO = JobSpec(min_nodes=3, max_nodes=3)


def refusal_of(transition: Transition) -> Refusal:
    assert transition.refusal is not None
    return transition.refusal


def test_spec_mismatch_names_every_field() -> None:
    """A node with another spec is refused, with each field that differs and both values."""
    bench = Bench(TRIO)
    bench.join("a")
    spec = replace(TRIO, min_nodes=2, max_restarts=5, shutdown_timeout_ms=1_500, grow=False)
    other = bench.agent("b", spec=spec)

    refused = other.hello()

    assert (
        RefusalKind.SPEC_MISMATCH,
        (
            ("min_nodes", "3", "2"),
            ("max_restarts", "0", "5"),
            ("grow", "True", "False"),
            ("shutdown_timeout", "30 s", "1.5 s"),
        ),
    ) == (refusal_of(refused).kind, refusal_of(refused).differences)
    assert (Refuse(other.session, 1, refusal_of(refused)),) == refused.effects


def test_spec_mismatch_says_that_no_agent_has_come() -> None:
    """A job that an operator has created keeps its specification until its join timeout."""
    bench = Bench(JobSpec(join_timeout_ms=60_000))
    assert bench.take(inputs.CreateJob(JobId(JOB), bench.spec)).refusal is None
    other = bench.agent("b", spec=replace(bench.spec, max_restarts=5))
    bench.advance(10_000)
    text = text_of(other.hello())

    assert "none of its agents is attached, and it waits 5" in text
    assert text.endswith(" s more for one: use its values, or cancel it first")
    assert bench.take(inputs.CancelJob(JobId(JOB), 0, "")).refusal is None
    assert other.hello().refusal is None


def text_of(transition: Transition) -> str:
    """Return what the agent is shown."""
    text: str = refusal_status(refusal_of(transition)).message
    return text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_nodes": 9}, "max_nodes"),
        ({"max_restarts": 9}, "max_restarts"),
        ({"join_timeout_ms": 9}, "join_timeout"),
        ({"last_call_ms": 9}, "last_call"),
        ({"settle_time_ms": 9}, "settle_time"),
        ({"grow_after_ms": 9}, "grow_after"),
        ({"grow": False}, "grow"),
        ({"shutdown_timeout_ms": 9}, "shutdown_timeout"),
        ({"restart_backoff_ms": 9}, "restart_backoff"),
        ({"heartbeat_interval_ms": 200}, "heartbeat_interval"),
        ({"lease_ms": 1_500}, "lease"),
        ({}, None),
    ],
)
def test_every_field_of_the_spec_is_compared(change: dict[str, int], field: str | None) -> None:
    """A difference in any field is named as in the contract."""
    spec = replace(JobSpec(), **change)

    differences = compare_specs(JobSpec(), spec)

    assert ([field] if field else []) == [name for name, _, _ in differences]


@pytest.mark.parametrize(("lease_ms", "shown"), [(0, "not given"), (1_500, "1.5 s")])
def test_lease_that_is_not_given_is_shown_as_such(lease_ms: int, shown: str) -> None:
    """A lease of 0 means that none was given; a shutdown timeout of 0 is a time."""
    spec = replace(JobSpec(), lease_ms=lease_ms, shutdown_timeout_ms=0)
    other = replace(spec, lease_ms=9_000, shutdown_timeout_ms=1_000)

    assert (("shutdown_timeout", "0 s", "1 s"), ("lease", shown, "9 s")) == compare_specs(
        spec, other
    )


def test_action_is_shown_as_its_flag_takes_it() -> None:
    """It is a value of an enum."""
    other = replace(JobSpec(), hang_action=HangAction.RESTART)

    assert (("hang_action", "report", "restart"),) == compare_specs(JobSpec(), other)


def test_explicit_name_in_use_is_refused() -> None:
    """An explicit name whose holder is attached is refused."""
    bench = Bench(TRIO)
    bench.join("a")

    refused = bench.agent("a").hello()

    assert (RefusalKind.NODE_NAME_IN_USE, (("job_id", "job"), ("node_name", "a"))) == (
        refusal_of(refused).kind,
        refusal_of(refused).facts,
    )


@pytest.mark.parametrize("wanted", [{"name": "a"}, {"name": "b", "node_rank": 0}])
def test_name_or_rank_of_a_silent_holder_is_awaited(wanted: dict[str, Any]) -> None:
    """Until the lease decides: the holder is heard again, or lost and replaced."""
    bench = Bench(TRIO)
    (holder,) = bench.join("a", node_rank=0)
    other = bench.agent(**wanted)
    holder.beats = False
    bench.advance(HEARD_MS)
    assert refusal_of(other.hello()).kind is not RefusalKind.NOT_READY
    bench.advance(1)
    assert refusal_of(other.hello()).kind is RefusalKind.NOT_READY
    bench.take(inputs.Heartbeat(holder.sender()))
    assert refusal_of(other.hello()).kind is not RefusalKind.NOT_READY

    bench.advance(Timing().lease_ms)
    assert other.hello().refusal is None
    assert holder.node is None


def test_explicit_name_of_a_broken_holder_is_taken_over() -> None:
    """An explicit name whose holder is disconnected is taken over at once, with its slot."""
    bench = Bench(TRIO)
    a, _, c = bench.run_round("a", "b", "c")
    a.break_off()

    (again,) = bench.join("a")
    bench.obey()

    assert (None, 0, 2) == (a.node, again.group_rank, c.group_rank)


def test_default_names_are_made_unique() -> None:
    """Agents on one host without explicit names get the host's name with a number."""
    bench = Bench(TRIO)

    agents = bench.join("host", "host", "host", explicit=False)

    assert ["host", "host-2", "host-3"] == [agent.known_node.name for agent in agents]
    assert Welcome(agents[1].session, 1, NodeName("host-2"), 1) in bench.effects


def test_node_rank_in_use_is_refused() -> None:
    """Equal explicit node ranks are refused, naming the holder; rank 0 is a rank."""
    bench = Bench(TRIO)
    (a,) = bench.join("a", node_rank=0)

    refused = bench.agent("b", node_rank=0).hello()
    assert (
        RefusalKind.NODE_RANK_IN_USE,
        (("job_id", "job"), ("node_rank", 0), ("node_name", "a")),
    ) == (refusal_of(refused).kind, refusal_of(refused).facts)

    a.break_off()
    bench.join("b", node_rank=0)
    assert a.node is None


def test_node_ranks_that_differ_or_are_unset_are_taken() -> None:
    """Only equal ranks conflict; an unset rank equals none."""
    bench = Bench(TRIO)

    bench.join("a", node_rank=1)
    bench.join("b", node_rank=0)
    bench.join("c")

    assert ["b", "a", "c"] == bench.order()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("127.0.0.1", "10.0.0.2", RefusalKind.ADDRESS_MISMATCH),
        ("10.0.0.2", "::1", RefusalKind.ADDRESS_MISMATCH),
        ("127.0.0.1", "127.0.0.1", None),
        ("10.0.0.2", "10.0.0.3", None),
    ],
)
def test_loopback_and_other_addresses_do_not_mix(
    first: str, second: str, kind: RefusalKind | None
) -> None:
    """A node whose address the others cannot reach is refused, naming both."""
    bench = Bench(TRIO)
    bench.join("a", address=first)

    refusal = bench.agent("b", address=second).hello().refusal

    assert kind is (None if refusal is None else refusal.kind)
    if refusal is not None:
        assert ["b", second, "a", first] == [value for _, value in refusal.facts]


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("10.127.0.1", False)],
)
def test_loopback(address: str, expected: bool) -> None:
    """Loopback is the whole of 127.0.0.0/8 and ::1."""
    assert expected is is_loopback(address)


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job has a limit of nodes; a node that resumes is not counted twice."""
    monkeypatch.setattr(admission, "NODES_PER_JOB_MAX", 2)
    bench = Bench(TRIO)
    a, _ = bench.join("a", "b")

    assert RefusalKind.LIMIT_REACHED is refusal_of(bench.agent("c").hello()).kind
    assert a.hello().refusal is None


def running() -> tuple[Bench, FakeAgent]:
    bench = Bench(JobSpec(max_restarts=1))
    (a,) = bench.run_round("a")
    return bench, a


@pytest.mark.parametrize("connection", [0, 1])
def test_hello_of_an_old_connection_is_refused(connection: int) -> None:
    """A Hello whose connection is not newer than the newest known is refused."""
    _, a = running()
    a.connection = connection - 1

    refused = a.hello()

    assert (
        RefusalKind.STALE_CONNECTION,
        (("what", "connection"), ("expected", 1), ("actual", connection)),
    ) == (refusal_of(refused).kind, refusal_of(refused).facts)


def test_old_connection_can_change_nothing() -> None:
    """Reports, heartbeats and the break of an older connection are dropped without a reply."""
    bench, a = running()
    old = replace(a.sender(), sequence=a.sequence + 1)
    a.hello(held=a.held_round())
    exited = inputs.Exited(old, 1, ())

    for stale in (exited, inputs.Heartbeat(old), inputs.Broken(old), inputs.Goodbye(old, "")):
        dropped = bench.take(stale)
        assert RefusalKind.STALE_CONNECTION is refusal_of(dropped).kind
        assert () == dropped.effects


def test_unknown_session_can_change_nothing() -> None:
    """Inputs from a session that never sent a Hello or was lost are dropped."""
    bench, a = running()
    stranger = inputs.Sender(SessionId("f" * 32), 1, EPOCH, 1)

    dropped = bench.take(inputs.Succeeded(stranger, 1))

    assert RefusalKind.UNKNOWN_SESSION is refusal_of(dropped).kind
    assert NodeState.STARTED is a.known_node.state


def test_report_under_an_earlier_epoch_is_refused() -> None:
    """A report from an earlier epoch ends the connection."""
    _, a = running()
    a.epoch = EPOCH - 1

    refused = a.succeed()

    assert RefusalKind.STALE_EPOCH is refusal_of(refused).kind
    assert (Refuse(a.session, 1, refusal_of(refused)),) == refused.effects


def test_report_after_a_gap_is_refused() -> None:
    """A report after a gap ends the connection, so the agent sends everything again."""
    _, a = running()
    a.sequence += 1

    refused = a.succeed()

    assert (RefusalKind.SEQUENCE_GAP, (("expected", 2), ("actual", 3))) == (
        refusal_of(refused).kind,
        refusal_of(refused).facts,
    )
    assert (Refuse(a.session, 1, refusal_of(refused)),) == refused.effects


@pytest.mark.parametrize("is_latest", [False, True])
def test_repeated_report_is_acknowledged_again(is_latest: bool) -> None:
    """A report that comes twice is applied once and acknowledged twice."""
    bench, a = running()
    a.fail()
    if not is_latest:
        bench.obey()
    latest, a.sequence, a.last_round = a.sequence, 1, 1

    again = a.fail()

    assert (Acknowledge(a.session, latest),) == again.effects
    assert ((), {}) == (again.records, again.delta.nodes)
    assert 1 == sum(isinstance(record, RoundStopped) for record in bench.decisions)


def test_every_report_is_acknowledged() -> None:
    """Every report is acknowledged by its number, even a stale one."""
    _, a = running()
    a.last_round = 77

    acknowledged = a.succeed()

    assert (Acknowledge(a.session, 2),) == acknowledged.effects


def test_epoch_outranks_every_other_coordinator() -> None:
    """A Hello with a higher epoch raises ours above it; one with our own epoch does not."""
    bench, a = running()
    a.hello(held=a.held_round())
    assert EPOCH == bench.state.epoch

    other = bench.agent("b", spec=a.identity.spec)
    other.epoch = EPOCH + 5
    other.hello()

    assert EPOCH + 6 == bench.state.epoch
    assert a.fail().refusal is None, "a node that does not know the new epoch yet is not stale"


def test_equal_epoch_of_another_coordinator_is_outranked() -> None:
    """A coordinator that shares its epoch with another one raises it."""
    bench, a = running()

    a.hello(held=a.held_round(), coordinator_id="another")

    assert EPOCH + 1 == bench.state.epoch


def test_round_of_another_durable_coordinator_is_refused() -> None:
    """A running round of another durable coordinator is not touched."""
    a, _ = Bench(JobSpec(min_nodes=2, max_nodes=2), coordinator_id="owner").run_round("a", "b")
    bench = Bench(window_ms=2_500)

    refused = bench.adopt_agent(a).hello(held=a.held_round(), durable=True)

    assert (
        RefusalKind.FOREIGN_ROUND,
        (("coordinator_id", "c1"), ("owner_id", "owner")),
    ) == (refusal_of(refused).kind, refusal_of(refused).facts)
    assert {} == bench.state.jobs


@pytest.mark.parametrize(
    ("claim", "durable"), [("a round of one without memory", False), ("no round", True)]
)
def test_nodes_of_another_coordinator_are_admitted(claim: str, durable: bool) -> None:
    """Nodes that hold no round, or one of a coordinator without memory, are admitted."""
    (a,) = Bench(JobSpec(), coordinator_id="owner").run_round("a")
    bench = Bench(JobSpec(), window_ms=2_500)

    transition = bench.adopt_agent(a).hello(
        held=None if durable else a.held_round(), durable=durable
    )

    assert transition.refusal is None, claim


def test_own_rounds_are_never_foreign() -> None:
    """A node that holds a round of this coordinator is admitted, durable or not."""
    (a,) = Bench(JobSpec(), coordinator_id="c1").run_round("a")
    bench = Bench(JobSpec(), window_ms=2_500, coordinator_id="c1")

    transition = bench.adopt_agent(a).hello(held=a.held_round(), durable=True)

    assert transition.refusal is None


def test_refused_hello_replaces_no_node() -> None:
    """A Hello that is refused for its rank does not take over a name."""
    bench = Bench(TRIO)
    a, _ = bench.join("a", "b")
    bench.join("c", node_rank=2)
    bench.obey()
    a.break_off()

    refused = bench.agent("a", node_rank=2).hello()

    assert RefusalKind.NODE_RANK_IN_USE is refusal_of(refused).kind
    assert (Phase.RUNNING, False) == (bench.job().phase, a.known_node.attached)


def test_message_for_a_later_coordinator_decides_nothing() -> None:
    """Another coordinator may own the job now. A new Hello raises the epoch."""
    bench, a = running()
    a.epoch = EPOCH + 1

    refusals = [refusal_of(a.succeed()), refusal_of(a.heartbeat())]

    assert [RefusalKind.NEWER_EPOCH] * 2 == [refusal.kind for refusal in refusals]
    assert {("expected", EPOCH), ("actual", EPOCH + 1)} <= set(refusals[0].facts)
    assert NodeState.STARTED is a.known_node.state
    a.hello(held=a.held_round())
    assert EPOCH < bench.state.epoch
