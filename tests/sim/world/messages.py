"""What travels between agents and the coordinator: core words on both ends, no protobuf.

The conversions are those of the agent's `translate.py` and the coordinator's `rpc/convert.py`; what
the latter would refuse as invalid is an `AssertionError` here, since an agent must never say it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from rallypoint.agent.core import model as agent
from rallypoint.server.core import effects, inputs
from rallypoint.server.core import model as server
from rallypoint.server.core.node import Claim

_ACTIVITIES = {
    agent.Stage.STARTING: server.Activity.ASSIGNED,
    agent.Stage.RUNNING: server.Activity.STARTED,
    agent.Stage.SUCCEEDED: server.Activity.SUCCEEDED,
    agent.Stage.FAILED: server.Activity.FAILED,
    agent.Stage.STOPPING: server.Activity.UNREADY,
    agent.Stage.SWEEPING: server.Activity.UNREADY,
    agent.Stage.BLOCKED: server.Activity.BLOCKED,
    agent.Stage.CLEAN: server.Activity.UNREADY,
}
_REASONS = tuple(server.RoundReason)


@dataclass(frozen=True, slots=True)
class Hangup:
    """The other side has ended the stream, or the network has."""

    dismissal: int | None = None
    """Exit code of an agent that is refused for good."""
    text: str = "the stream broke"


@dataclass(frozen=True, slots=True)
class Down:
    """An envelope to an agent. A Welcome brings the desired state along when there is one."""

    connection: int
    epoch: int
    acknowledged: int
    welcome: effects.Welcome | None = None
    coordinator_id: str = ""
    interval_ms: int = 0
    lease_ms: int = 0
    desired: effects.Send | None = None
    notify: effects.Notify | None = None
    heartbeat: int = 0
    """Highest heartbeat that was heard on this connection."""


Up = inputs.Input | Hangup


def claim_of(held: agent.Held, now_ms: int) -> Claim:
    """Return the round that an agent holds, as its Hello says it."""
    order = held.order
    assert order.number > 0 and order.run > 0
    assert order.first_rank + order.local_world_size <= order.world_size
    assert len(held.workers) == order.local_world_size
    return Claim(
        header=header_of(order),
        assignment=server.Assignment(
            group_rank=order.group_rank,
            first_rank=order.first_rank,
            local_world_size=order.local_world_size,
            role=order.role,
            first_role_rank=order.first_role_rank,
            role_world_size=order.role_world_size,
        ),
        activity=_ACTIVITIES[held.stage],
        pids=tuple(worker.pid for worker in held.workers),
        exits=tuple(exit_of(worker, now_ms) for worker in held.workers if worker.exit is not None),
    )


def header_of(order: agent.RunOrder) -> server.RoundHeader:
    """Return what the members of the ordered round share."""
    return server.RoundHeader(
        number=order.number,
        run=order.run,
        world_size=order.world_size,
        group_world_size=order.group_world_size,
        master_addr=order.master_addr,
        master_port=order.master_port,
        restart_count=order.restart_count,
        reason=_REASONS[order.reason],
        epoch=order.epoch,
    )


def exit_of(worker: agent.LocalWorker, now_ms: int) -> server.WorkerExit:
    """Return how a worker ended."""
    exit = worker.exit
    assert exit is not None and (exit.exit_code is None) != (exit.signal is None)
    return server.WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=exit.exit_code,
        signal=exit.signal,
        agent_signalled_first=exit.signalled_first,
        ago_ms=max(0, now_ms - exit.at_ms),
        ran_ms=max(0, exit.at_ms - worker.started_ms) if worker.pid else 0,
        stderr_tail=exit.stderr_tail,
        signalled_before_ms=exit.signalled_before_ms,
        oom_killed=exit.oom_killed,
    )


def ready_of(round: int, port: int) -> inputs.ReadyPort:
    """Return what a clean node says of itself."""
    assert 0 < port < 65_536, "a clean node has a port"
    return inputs.ReadyPort(round, port)


def report_of(report: agent.Report, sender: inputs.Sender, now_ms: int) -> inputs.Report:
    """Return an agent's report as the coordinator takes it."""
    match report:
        case agent.ReadyReport(round=number, port=port):
            return inputs.Ready(sender, ready_of(number, port))
        case agent.StartedReport(round=number, pids=pids):
            assert all(pids)
            return inputs.Started(sender, number, pids)
        case agent.RefusedReport(round=number, leaving=leaving, text=text):
            return inputs.Refused(sender, number, leaving, text)
        case agent.ExitedReport(round=number, worker=worker):
            return inputs.Exited(sender, number, (exit_of(worker, now_ms),))
        case agent.SucceededReport(round=number):
            return inputs.Succeeded(sender, number)
        case agent.BlockedReport(round=number, pids=pids):
            return inputs.Blocked(sender, number, pids)
        case agent.DrainingReport(until_ms=until_ms, reason=reason):
            return inputs.Draining(sender, max(0, until_ms - now_ms), reason)
        case agent.GoodbyeReport(text=text):
            return inputs.Goodbye(sender, text)
        case _:
            assert_never(report)


def desired_of(desired: effects.Desired) -> agent.Desired:
    """Return what the coordinator wants as the agent takes it."""
    match desired:
        case effects.DesiredRun():
            return agent.DesiredRun(_order_of(desired))
        case effects.DesiredStop(round=number, grace_ms=grace_ms, text=text):
            return agent.DesiredStop(number, grace_ms, text)
        case effects.DesiredStandby(spare=spare):
            return agent.DesiredStandby(spare)
        case effects.DesiredReleased(text=text):
            return agent.DesiredEnd(0, f"released: {text}", is_release=True)
        case effects.DesiredFinished(outcome=outcome):
            code = 0 if outcome is server.Outcome.SUCCEEDED else 1
            return agent.DesiredEnd(code, f"the job has {outcome.value}")
        case _:
            assert_never(desired)


def notices_of(
    notify: effects.Notify | None, name: server.NodeName, now_ms: int
) -> tuple[agent.Notice, ...]:
    """Return what a node is told to expect as its agent takes it."""
    return tuple(
        agent.Notice(
            "growth" if notice.name is None else "drain",
            notice.name or "",
            notice.reason,
            now_ms + left_ms,
            is_here=notice.name == name,
        )
        for notice, left_ms in (notify.notices if notify is not None else ())
    )


def _order_of(desired: effects.DesiredRun) -> agent.RunOrder:
    header, place = desired.header, desired.assignment
    assert isinstance(place, server.Assignment)
    return agent.RunOrder(
        number=header.number,
        run=header.run,
        world_size=header.world_size,
        group_world_size=header.group_world_size,
        master_addr=header.master_addr,
        master_port=header.master_port,
        restart_count=header.restart_count,
        reason=_REASONS.index(header.reason),
        epoch=header.epoch,
        group_rank=place.group_rank,
        first_rank=place.first_rank,
        local_world_size=place.local_world_size,
        role=place.role,
        first_role_rank=place.first_role_rank,
        role_world_size=place.role_world_size,
        max_restarts=desired.max_restarts,
    )
