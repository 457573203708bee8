"""What one side says the other side understands: values cross the wire and come out equal.

What is expected is what the .proto files say: texts are cleaned and cut, codes and
pids brought into their ranges; everything else stays.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import desired, reports
from rallypoint.agent.core import inputs as agent_inputs
from rallypoint.agent.core.held_round import HeldRound, LocalWorker, Milestone, Stage
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.round.environ import Launch
from rallypoint.agent.session.link import Link
from rallypoint.agent.session.translate import parse_desired, parse_notices, report_message
from rallypoint.agent.settings import AgentCallbacks, Settings
from rallypoint.base.exit_codes import EXIT_CANCELLED, EXIT_FAILED, EXIT_NO_REQUEUE
from rallypoint.base.printable import to_printable_line, to_printable_lines
from rallypoint.server.agents.desired import desired_message, notices_message
from rallypoint.server.agents.hello import to_hello
from rallypoint.server.agents.reports import to_report
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.effects import Notify, Send
from rallypoint.server.core.model import desired as wished
from rallypoint.server.core.model.ids import SessionId
from rallypoint.server.core.model.node import HeldRound as HeldThere
from rallypoint.server.core.model.node import NodeState
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, RoundHeader, RoundReason
from rallypoint.server.core.model.round import Milestone as MilestoneThere
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.verdict import Consequence
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration
from support.contract import values
from support.contract.values import NOW_MS, WORKERS_MAX


def line(text: str, most: int = 1_024) -> str:
    """Return a fact of one line as the coordinator keeps it."""
    return to_printable_line(text[: 2 * most])[:most]


def block(text: str, most: int = 4_096, *, keeps_end: bool = False) -> str:
    """Return a fact of several lines as the coordinator keeps it."""
    if text.isprintable() and len(text) <= most:
        return text
    cleaned = to_printable_lines(text[-2 * most :] if keeps_end else text[: 2 * most])
    return cleaned[-most:] if keeps_end else cleaned[:most]


def exit_there(worker: LocalWorker) -> WorkerExit:
    """Return an exit, or the failure of a running worker, as the coordinator knows it."""
    exit = worker.outcome
    assert exit is not None
    code, signal = exit.exit_code, exit.signal
    error = None
    if exit.error is not None:
        trace = block(exit.error.traceback, 16_384, keeps_end=True)
        error = ErrorRecord(block(exit.error.message), trace, exit.error.before_exit_ms)
    return WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=code if code is None or 0 <= code <= 255 else 255,
        signal=signal if signal is None or 1 <= signal <= 127 else 127,
        agent_signalled_first=exit.signalled_first,
        ago_ms=max(0, NOW_MS - exit.at_ms),
        ran_ms=max(0, exit.at_ms - worker.started_ms) if worker.pid else 0,
        error=error,
        stderr_tail=block(exit.stderr_tail, keeps_end=True),
        signalled_before_ms=exit.signalled_before_ms,
        oom_killed=exit.oom_killed,
        failed_ms=exit.failed_ms,
        error_file=line(exit.error_file[:1_024]),
        stderr_file=line(exit.stderr_file[:1_024]),
    )


def report_there(  # noqa: C901  # one flat case per report
    report: reports.Report, sender: inputs.Sender
) -> inputs.Report:
    """Return a report as the coordinator understands it."""
    match report:
        case reports.ReadyReport(round=number, port=port):
            return inputs.Ready(sender, inputs.ReadyPort(number, port))
        case reports.StartedReport(round=number, pids=pids):
            return inputs.Started(sender, number, pids)
        case reports.ReachedReport(round=number, milestone=milestone, at_ms=at_ms):
            ago_ms = max(0, NOW_MS - at_ms)
            return inputs.Reached(sender, number, ((MILESTONES[milestone], ago_ms),))
        case reports.ProgressReport(round=number, still_since_ms=since_ms):
            return inputs.Progress(sender, number, still_there(since_ms))
        case reports.StartFailedReport(round=number, text=text, is_permanent=is_permanent):
            return inputs.StartFailed(sender, number, line(text[:1_024]), is_permanent)
        case reports.LeavingReport(round=number, text=text):
            return inputs.Leaving(sender, number, line(text[:1_024]))
        case reports.ExitedReport(round=number, worker=worker):
            return inputs.Exited(sender, number, (exit_there(worker),))
        case reports.RecordedReport(round=number, worker=worker):
            return inputs.Recorded(sender, number, (exit_there(worker),))
        case reports.SucceededReport(round=number):
            return inputs.Succeeded(sender, number)
        case reports.BlockedReport(round=number, pids=pids):
            return inputs.Blocked(sender, number, pids[:64])
        case reports.DrainingReport(until_ms=until_ms, reason=reason):
            return inputs.Draining(sender, max(0, until_ms - NOW_MS), line(reason[:1_024]))
        case reports.GoodbyeReport(kind=kind, text=text):
            return inputs.Goodbye(sender, line(text[:1_024]) or SILENT[kind])


def still_there(since_ms: int | None) -> int | None:
    """Return for how long workers stand still, as the coordinator understands it."""
    return None if since_ms is None else max(0, NOW_MS - since_ms)


def milestones_there(held: HeldRound) -> tuple[tuple[MilestoneThere, int], ...]:
    """Return what all workers of a held round have reached, as the coordinator knows it."""
    found = {
        one: [at_ms for worker in held.workers for name, at_ms in worker.milestones if name is one]
        for one in Milestone
    }
    return tuple(
        (MILESTONES[one], max(0, NOW_MS - max(times, default=0)))
        for one, times in found.items()
        if len(times) == len(held.workers)
    )


MILESTONES = {
    Milestone.IMPORTED: MilestoneThere.IMPORTED,
    Milestone.PROCESS_GROUP: MilestoneThere.PROCESS_GROUP,
}
SILENT = {
    reports.GoodbyeKind.FINISHED: "its run has ended",
    reports.GoodbyeKind.RELEASED: "the coordinator released it",
    reports.GoodbyeKind.DRAINED: "the coordinator released it",
    reports.GoodbyeKind.SIGNAL: "its agent received a signal",
    reports.GoodbyeKind.ERROR: "its agent could not continue",
}
STATES = {
    Stage.STARTING: NodeState.ASSIGNED,
    Stage.RUNNING: NodeState.STARTED,
    Stage.SUCCEEDED: NodeState.SUCCEEDED,
    Stage.FAILED: NodeState.FAILED,
    Stage.STOPPING: NodeState.UNREADY,
    Stage.SWEEPING: NodeState.UNREADY,
    Stage.BLOCKED: NodeState.BLOCKED,
    Stage.CLEAN: NodeState.UNREADY,
}
_NUMBERS = {reason: number for number, reason in enumerate(RoundReason)} | {
    RoundReason.UNKNOWN: 12,
    RoundReason.HUNG: 13,
}
"""What an agent receives for the reason of a round."""
BEGINNINGS = {
    1: RoundReason.FIRST,
    2: RoundReason.WORKER_FAILED,
    3: RoundReason.NODE_LOST,
    4: RoundReason.NODE_LEFT,
    5: RoundReason.GROWTH,
    6: RoundReason.START_OVERDUE,
    9: RoundReason.DRAINED,
}


def held_there(held: HeldRound) -> HeldThere:
    """Return a held round as the coordinator understands it."""
    header, place = held.order.header, held.order.assignment
    return HeldThere(
        header=RoundHeader(
            header.number,
            header.run,
            header.world_size,
            header.group_world_size,
            header.master_addr,
            header.master_port,
            header.restart_count,
            BEGINNINGS.get(header.reason, RoundReason.UNKNOWN),
            header.epoch,
        ),
        assignment=Assignment(
            place.group_rank,
            place.first_rank,
            place.local_world_size,
            place.role,
            place.first_role_rank,
            place.role_world_size,
        ),
        state=STATES[held.stage],
        pids=tuple(worker.pid for worker in held.workers),
        exits=tuple(exit_there(one) for one in held.workers if one.pid and one.outcome is not None),
        start_failure=line((held.start_failure or "")[:1_024]),
        worker_token=held.order.worker_token,
        milestones=milestones_there(held),
        still_ms=still_there(held.still_since_ms),
    )


def desired_here(wish: wished.Desired) -> desired.Desired:
    """Return a desired state as the agent understands it."""
    match wish:
        case wished.DesiredRun(
            header=header, assignment=place, max_restarts=most, held_token=token
        ):
            return desired.RunOrder(
                desired.RoundHeader(
                    header.number,
                    header.run,
                    header.world_size,
                    header.group_world_size,
                    header.master_addr,
                    header.master_port,
                    header.restart_count,
                    _NUMBERS[header.reason],
                    header.epoch,
                ),
                desired.Assignment(
                    place.group_rank,
                    place.first_rank,
                    place.local_world_size,
                    place.role,
                    place.first_role_rank,
                    place.role_world_size,
                ),
                most,
                token,
                wish.reached_at,
            )
        case wished.DesiredStop(round=number, shutdown_timeout_ms=timeout_ms, text=text):
            return desired.DesiredStop(number, timeout_ms, text)
        case wished.DesiredStandby(spare=spare):
            return desired.DesiredStandby(spare)
        case wished.DesiredReleased(text=text):
            return desired.DesiredEnd(0, f"released: {text}", is_release=True)
        case wished.DesiredFinished(outcome=outcome, verdict=verdict):
            is_final = verdict is not None and verdict.consequence is Consequence.NO_REQUEUE
            failed = EXIT_NO_REQUEUE if is_final else EXIT_FAILED
            codes = {Outcome.SUCCEEDED: 0, Outcome.CANCELLED: EXIT_CANCELLED}
            return desired.DesiredEnd(codes.get(outcome, failed), ENDS[outcome])


ENDS = {
    Outcome.SUCCEEDED: "the job succeeded",
    Outcome.FAILED: "the job failed",
    Outcome.ABANDONED: "the job was abandoned",
    Outcome.CANCELLED: "the job was cancelled",
}


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
AMOUNTS = pytest.mark.parametrize(
    "amount",
    [FEW, pytest.param(settings(FEW, max_examples=600), marks=pytest.mark.long)],
    ids=["few", "many"],
)


# --- reports ---


def over_the_wire(message: agent_pb2.SessionRequest) -> agent_pb2.SessionRequest:
    return agent_pb2.SessionRequest.FromString(message.SerializeToString())


def check_report(report: reports.Report, sequence: int) -> None:
    message = report_message(report, NOW_MS)
    message.session_id, message.connection = SESSION, 3
    message.sequence, message.epoch = sequence, 9
    sender = inputs.Sender(SESSION, 3, 9, sequence)

    assert report_there(report, sender) == to_report(over_the_wire(message), WORKERS_MAX, CLOCK_MS)


@AMOUNTS
def test_report_is_understood(amount: settings) -> None:
    """The coordinator's input has what the agent's report had."""
    amount(given(values.reported(), st.integers(1, 2**53 - 1))(check_report))()


# --- the Hello ---


def spec_message(spec: JobSpec) -> job_pb2.JobSpec:
    """Return a specification with every field set, as the command line sends it."""
    return job_pb2.JobSpec(
        min_nodes=spec.min_nodes,
        max_nodes=spec.max_nodes,
        max_restarts=spec.max_restarts,
        join_timeout=to_duration(spec.join_timeout_ms),
        last_call=to_duration(spec.last_call_ms),
        settle_time=to_duration(spec.settle_time_ms),
        grow_after=to_duration(spec.grow_after_ms),
        grow=spec.grow,
        shutdown_timeout=to_duration(spec.shutdown_timeout_ms),
        restart_backoff=to_duration(spec.restart_backoff_ms),
        fence_after=to_duration(spec.fence_after_ms) if spec.fence_after_ms else None,
        no_retry_exit_codes=spec.no_retry_exit_codes,
        no_requeue_exit_codes=spec.no_requeue_exit_codes,
        quarantine_after=spec.quarantine_after,
        quarantine_window=to_duration(spec.quarantine_window_ms),
        quarantine_cooldown=to_duration(spec.quarantine_cooldown_ms),
        max_reformations=spec.max_reformations,
        crash_loop=spec.crash_loop,
        progress_after=to_duration(spec.progress_after_ms),
        heartbeat_interval=to_duration(spec.heartbeat_interval_ms)
        if spec.heartbeat_interval_ms
        else None,
        lease=to_duration(spec.lease_ms) if spec.lease_ms else None,
        hang_after=to_duration(spec.hang_after_ms),
        hang_first_after=to_duration(spec.hang_first_after_ms),
        hang_action=job_pb2.HangAction.Value(f"HANG_ACTION_{spec.hang_action.name}"),
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
    agent = Agent(told, AgentCallbacks(finished=unused, disconnected=unused), unused, NOW_MS)
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


@AMOUNTS
def test_hello_is_understood(amount: settings) -> None:
    """The coordinator learns everything that the node holds."""
    amount(given(values.agent_states(), values.specs(), people)(check_hello))()


# --- desired states and notices ---


def check_desired(wish: wished.Desired, revision: int) -> None:
    left_ms = 5_000
    sent = desired_message(Send(SESSION, revision, wish, left_ms)).SerializeToString()
    drain = None
    if isinstance(wish, wished.DesiredRun | wished.DesiredStop) and wish.drain is not None:
        drain = desired.DesiredDrain(NOW_MS + left_ms, wish.drain.reason)
    expected = agent_inputs.DesiredReceived(9, revision, desired_here(wish), drain)

    assert expected == parse_desired(9, agent_pb2.DesiredState.FromString(sent), NOW_MS)


@AMOUNTS
def test_desired_state_is_understood(amount: settings) -> None:
    """The agent makes true what the coordinator wishes."""
    amount(given(values.wishes(), st.integers(0, 2**53 - 1))(check_desired))()


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
