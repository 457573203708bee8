"""What one side says the other side understands: values cross the wire and come out equal.

`support/contract/understood.py` says what is expected.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import desired, reports
from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.session.link import Link
from rallypoint.agent.session.translate import parse_desired, parse_notices, report_message
from rallypoint.agent.settings import Listener, Settings
from rallypoint.agent.workers.environ import Launch
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Notify, Send
from rallypoint.server.core.model import desired as wished
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.rpc.convert.hello import to_hello
from rallypoint.server.rpc.convert.reports import to_report
from rallypoint.server.rpc.views.desired import desired_message
from rallypoint.server.rpc.views.notices import notices_message
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from support.contract import values
from support.contract.understood import desired_here, held_there, line, report_there
from support.contract.values import NOW_MS, WORKERS_MAX

SESSION = SessionId("0a" * 16)
CLOCK_MS = 2**41
"""The coordinator's clock: no epoch is ahead of it."""
FEW = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=600)


# --- reports ---


def over_the_wire(message: agent_pb2.SessionRequest) -> agent_pb2.SessionRequest:
    return agent_pb2.SessionRequest.FromString(message.SerializeToString())


def check_report(report: reports.Report, sequence: int) -> None:
    message = report_message(report, NOW_MS)
    message.session_id, message.connection = SESSION, 3
    message.sequence, message.epoch = sequence, 9
    sender = inputs.Sender(SESSION, 3, 9, sequence)

    assert report_there(report, sender) == to_report(over_the_wire(message), WORKERS_MAX, CLOCK_MS)


@FEW
@given(values.reported(), st.integers(1, 2**53 - 1))
def test_report_is_understood(report: reports.Report, sequence: int) -> None:
    """The coordinator's input has what the agent's report had."""
    check_report(report, sequence)


@pytest.mark.long
@MANY
@given(values.reported(), st.integers(1, 2**53 - 1))
def test_many_reports_are_understood(report: reports.Report, sequence: int) -> None:
    """The same for more of them."""
    check_report(report, sequence)


# --- the Hello ---


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Return a specification with every field set, as the command line sends it."""
    return job_pb2.JobSpec(
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        join_timeout=to_duration(spec.join_timeout_ms),
        last_call=to_duration(spec.last_call_ms),
        settle_time=to_duration(spec.settle_ms),
        grow_after=to_duration(spec.grow_after_ms),
        grow=spec.grow,
        shutdown_timeout=to_duration(spec.shutdown_timeout_ms),
        restart_backoff=to_duration(spec.restart_backoff_ms),
        fence_after=to_duration(spec.fence_ms) if spec.fence_ms else None,
        no_retry_exit_codes=spec.no_retry,
        no_requeue_exit_codes=spec.no_requeue,
        quarantine_after=spec.quarantine_after,
        quarantine_window=to_duration(spec.quarantine_window_ms),
        quarantine_cooldown=to_duration(spec.quarantine_cooldown_ms),
        max_reformations=spec.max_reformations,
        crash_loop=spec.crash_loop,
        progress_after=to_duration(spec.progress_ms),
        heartbeat_interval=to_duration(spec.heartbeat_interval_ms)
        if spec.heartbeat_interval_ms
        else None,
        lease=to_duration(spec.lease_ms) if spec.lease_ms else None,
    )


def agent_of(state: AgentState, spec: JobSpec, who: tuple[str, str, str, int | None]) -> Agent:
    name, host_name, role, node_rank = who
    unused: Any = None
    told = Settings(
        coordinator="127.0.0.1:1",
        is_standalone=False,
        job_id="job",
        spec=spec_message(spec),
        workers=state.workers,
        role=role,
        node_name=name,
        node_name_explicit=node_rank is None,
        node_rank=node_rank,
        address="10.0.0.1",
        host_name=host_name,
        labels={"rack": role, "a": "b"},
        launch_id=role,
        launch=Launch("train.py", ()),
        program=agent_pb2.Program(name="train.py", command_line="train.py --lr 1", user="alice"),
        output=unused,
        logs_plugin=None,
        shutdown_timeout_ms=1_000,
        drain_ms=0,
        drain_signal=None,
        coordinator_timeout_ms=1_000,
        outcome_timeout_ms=1_000,
        fence_ms=0,
        signals=(),
        incarnation=SESSION,
        environment={},
    )
    agent = Agent(told, Listener(finished=unused, disconnected=unused), unused, NOW_MS)
    agent.link = Link(told.coordinator, SESSION, agent)
    agent.state = state
    agent.run_number, agent.coordinator_id = state.last_round, "former"
    vars(agent)["now_ms"] = lambda: NOW_MS
    return agent


people = st.tuples(
    st.sampled_from(values.NAMES), values.words, values.lines, st.none() | st.integers(0, 2**31 - 1)
)
"""Node name, host name, role and node rank."""


def check_hello(state: AgentState, spec: JobSpec, who: tuple[str, str, str, int | None]) -> None:
    message = agent_pb2.SessionRequest(
        session_id=SESSION,
        connection=2,
        epoch=state.epoch,
        hello=agent_of(state, spec, who).hello(),
    )
    name, host_name, role, node_rank = who
    ready = None if state.held is not None else inputs.ReadyPort(state.last_round, state.port)
    draining = None
    if state.drain is not None:
        left_ms = max(0, state.drain.until_ms - NOW_MS)
        draining = (left_ms, line(state.drain.reason[:1_024]))

    hello = to_hello(over_the_wire(message), CLOCK_MS)
    who_there = hello.identity
    assert (SESSION, 2, state.epoch) == (who_there.session, hello.connection, hello.epoch)
    assert spec == who_there.spec
    assert (name, line(host_name, 253)) == (who_there.name, who_there.host_name)
    assert (node_rank is None, node_rank) == (who_there.name_explicit, who_there.node_rank)
    assert (role, role) == (who_there.role, who_there.launch_id)
    assert (("a", "b"), ("rack", role)) == who_there.labels
    assert ("former", state.last_round) == (hello.coordinator_id, hello.run)
    assert (state.acknowledged, state.revision) == (hello.acknowledged, hello.revision)
    assert ready == hello.ready
    assert (None if state.held is None else held_there(state.held)) == hello.held
    assert draining == hello.draining


@FEW
@given(values.agent_states(), values.specs(), people)
def test_hello_is_understood(
    state: AgentState, spec: JobSpec, who: tuple[str, str, str, int | None]
) -> None:
    """The coordinator learns everything that the node holds."""
    check_hello(state, spec, who)


@pytest.mark.long
@MANY
@given(values.agent_states(), values.specs(), people)
def test_many_hellos_are_understood(
    state: AgentState, spec: JobSpec, who: tuple[str, str, str, int | None]
) -> None:
    """The same for more of them."""
    check_hello(state, spec, who)


# --- desired states and notices ---


def check_desired(wish: wished.Desired, revision: int) -> None:
    left_ms = 5_000
    sent = desired_message(Send(SESSION, revision, wish, left_ms)).SerializeToString()
    drain = None
    if isinstance(wish, wished.DesiredRun | wished.DesiredStop) and wish.drain is not None:
        drain = desired.DesiredDrain(NOW_MS + left_ms, wish.drain.reason)
    expected = agent_inputs.DesiredReceived(9, revision, desired_here(wish), drain)

    assert expected == parse_desired(9, agent_pb2.DesiredState.FromString(sent), NOW_MS)


@FEW
@given(values.wishes(), st.integers(0, 2**53 - 1))
def test_desired_state_is_understood(wish: wished.Desired, revision: int) -> None:
    """The agent makes true what the coordinator wishes."""
    check_desired(wish, revision)


@pytest.mark.long
@MANY
@given(values.wishes(), st.integers(0, 2**53 - 1))
def test_many_desired_states_are_understood(wish: wished.Desired, revision: int) -> None:
    """The same for more of them."""
    check_desired(wish, revision)


@FEW
@given(values.notices())
def test_notices_are_understood(notices: Any) -> None:
    """The agent learns of every notice, soonest first."""
    sent = notices_message(Notify(SESSION, notices)).SerializeToString()
    soonest_first = sorted(notices, key=lambda pair: pair[1])
    expected = tuple(
        desired.Notice(
            "growth" if notice.name is None else "drain",
            notice.name or "",
            notice.reason,
            NOW_MS + left_ms,
        )
        for notice, left_ms in soonest_first
    )

    assert expected == parse_notices(agent_pb2.Notices.FromString(sent), NOW_MS)
