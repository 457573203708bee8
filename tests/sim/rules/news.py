"""Rules for everything that is reported: what arrives is what happened.

They compare what one side receives with the simulated processes and the journal, so a conversion
that drops, swaps or changes a fact breaks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple

from rallypoint.agent.core.desired import Desired, DesiredStop, RunOrder
from rallypoint.agent.core.held_round import ErrorRecord as LocalError
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.node import HeldRound, Identity, NodeState
from rallypoint.server.core.model.round import Member, RoundHeader
from rallypoint.server.core.model.worker import ErrorRecord, FailedWorker, WorkerExit
from rallypoint.v1.agent_service_pb2 import Finished
from rallypoint.v1.verdict_pb2 import FailedWorker as FailedMessage
from sim.rules.rules import Checker, News
from sim.world.wire import header_of, host_addresses_of, host_name_of
from support.core.decisions import JobUpdated, Record, RoundSealed, RunClosed

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.process import Process
    from sim.world.server import Server
    from sim.world.world import World


class NewsIsTrue(Checker):
    """What the coordinator hears of a node and its workers is what they are and did."""

    def heard(self, server: Server, agent: Agent, input: News, sent_ms: int) -> None:
        match input:
            case inputs.Hello():
                self._check_hello(agent, input, sent_ms)
            case inputs.Exited(exits=exits) | inputs.Recorded(exits=exits):
                have_ended = isinstance(input, inputs.Exited)
                self.require(all(exit.has_ended == have_ended for exit in exits), f"{input}")
                for exit in exits:
                    self._check_exit(agent, exit, sent_ms)
            case inputs.Started(round=number, pids=pids):
                started = self._workers_of(agent, number)
                expected = tuple(started[rank].pid for rank in sorted(started))
                self.require(pids == expected, f"started {pids}, not {expected}")
            case inputs.Succeeded(round=number):
                self._check_success(agent, number)
            case inputs.Blocked(pids=pids):
                are_blocked = all(self.world.processes[pid].is_blocked for pid in pids)
                self.require(are_blocked and bool(pids), f"{pids} are blocked")
            case inputs.Draining(time_ms=left_ms, reason=reason):
                self._check_drain(agent, left_ms, reason, sent_ms)
            case inputs.StartFailed(text=text) | inputs.Leaving(text=text):
                self.require(bool(text), f"{input} gives no reason")

    def _workers_of(self, agent: Agent, number: int) -> dict[int, Process]:
        """Return the workers of a round on a node, by local rank."""
        return {
            process.local_rank: process
            for process in agent.workers.started
            if process.order.number == number
        }

    def _check_hello(self, agent: Agent, hello: inputs.Hello, sent_ms: int) -> None:
        plan, name = agent.host.plan, hello.identity.name
        expected = Identity(
            job_id=plan.job_id,
            session=agent.session,
            spec=agent.spec,
            name=name,
            name_explicit=plan.explicit,
            address=plan.address,
            local_world_size=plan.workers,
            role=plan.role,
            labels=plan.labels,
            node_rank=plan.node_rank,
            launch_id=plan.launch_id,
            host_name=host_name_of(plan),
            program=plan.program,
        )
        self.require(hello.identity == expected, f"{hello.identity}, not {expected}")
        is_named = name == plan.name or (not plan.explicit and name.startswith(plan.name))
        self.require(is_named, f"{plan.name} is named {name}")
        if hello.draining is not None:
            self._check_drain(agent, *hello.draining, sent_ms)
        if hello.held is not None:
            self._check_held(agent, hello.held, sent_ms)

    def _check_drain(self, agent: Agent, left_ms: int, reason: str, sent_ms: int) -> None:
        drain = agent.state.drain
        assert drain is not None
        is_true = reason == drain.reason and left_ms >= max(0, drain.until_ms - sent_ms)
        self.require(is_true, f"drains in {left_ms} ms, {reason}, but {drain}")

    def _check_held(self, agent: Agent, held: HeldRound, sent_ms: int) -> None:
        workers = self._workers_of(agent, held.header.number)
        for process in workers.values():
            self.require(held.header == header_of(process.order), f"holds {held.header}")
            place = astuple(process.order.assignment)
            self.require(astuple(held.assignment) == place, f"{held.assignment}, not {place}")
        for rank, pid in enumerate(held.pids):
            started_ms = workers[rank].started_ms if rank in workers else None
            is_started = started_ms is not None and started_ms < sent_ms
            if pid or is_started:
                self.require(workers[rank].pid == pid, f"worker {rank} is {pid} in {held}")
        for exit in held.exits:
            self._check_exit(agent, exit, sent_ms)
        ended = {exit.local_rank: exit.has_ended for exit in held.exits}
        for process in workers.values():
            if process.told_ms is not None and process.told_ms < sent_ms:
                self.require(ended.get(process.local_rank, False), f"{process.pid} ended: {held}")
            elif process.found_ms is not None and process.found_ms < sent_ms:
                self.require(process.local_rank in ended, f"{process.pid} failed: {held}")
        if held.state is NodeState.SUCCEEDED:
            self._check_success(agent, held.header.number)

    def _check_success(self, agent: Agent, number: int) -> None:
        codes = [process.exit_code for process in self._workers_of(agent, number).values()]
        is_success = codes == [0] * agent.host.plan.workers
        self.require(is_success, f"{agent.host.name} succeeds with {codes}")

    def _check_exit(self, agent: Agent, exit: WorkerExit, sent_ms: int) -> None:
        process = self.world.processes.get(exit.pid)
        self.require(process is not None and process.agent is agent, f"no process for {exit}")
        assert process is not None
        left, at_ms, started_ms = process.left, process.ended_ms, process.started_ms
        if not exit.has_ended:
            self.require(process.found_ms is not None, f"recorded nothing: {exit}")
            assert process.record is not None and process.found_ms is not None
            left, at_ms = process.record, process.found_ms
        else:
            self.require(process.told_ms is not None, f"not ended: {exit}")
        assert started_ms is not None
        expected = WorkerExit(
            local_rank=process.local_rank,
            pid=process.pid,
            exit_code=process.exit_code if exit.has_ended else None,
            signal=process.signal if exit.has_ended else None,
            agent_signalled_first=exit.agent_signalled_first,
            ago_ms=sent_ms - at_ms,
            ran_ms=max(0, at_ms - started_ms),
            error=_record_of(left.error),
            stderr_tail=left.stderr_tail,
            signalled_before_ms=exit.signalled_before_ms,
            oom_killed=left.oom_killed,
            failed_ms=left.failed_ms,
            error_file=left.error_file,
            stderr_file=left.stderr_file,
        )
        self.require(exit == expected, f"\n  {exit}, not\n  {expected}")
        # A signal in the instant in which an error is found comes after it; an exit is seen later.
        # An exit is the effect of a signal that the helper had sent, an error of one asked for.
        latest_ms = at_ms if exit.has_ended else at_ms - 1
        signalled_ms = process.signalled_ms if exit.has_ended else process.asked_ms
        if signalled_ms is not None and signalled_ms <= latest_ms:
            self.require(exit.agent_signalled_first, f"pid {exit.pid} was signalled: {exit}")
            since_ms = at_ms - signalled_ms
            is_since = (exit.signalled_before_ms or 0) >= since_ms
            self.require(is_since, f"pid {exit.pid} was signalled {since_ms} ms before: {exit}")
        elif exit.has_ended and agent.state.drain is None:
            is_own = not exit.agent_signalled_first
            self.require(is_own, f"pid {exit.pid} was not signalled: {exit}")

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, RunClosed) and record.verdict is not None:
            culprit = record.verdict.culprit
            if culprit is not None and culprit.exit.pid:
                self._check_culprit(culprit)

    def _check_culprit(self, culprit: FailedWorker) -> None:
        process, exit = self.world.processes[culprit.exit.pid], culprit.exit
        self.require(culprit.rank == process.rank, f"rank {process.rank} is to blame: {culprit}")
        is_end = (exit.exit_code, exit.signal) == (process.exit_code, process.signal)
        is_true = is_end if exit.has_ended else process.found_ms is not None
        self.require(is_true and exit.is_failure, f"pid {process.pid} did not end as in {culprit}")


def _record_of(error: LocalError | None) -> ErrorRecord | None:
    if error is None:
        return None
    return ErrorRecord(error.message, error.traceback, error.before_exit_ms)


class OrdersAreTrue(Checker):
    """What an agent receives is what the coordinator decided: its ranks, timeouts and outcome."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sealed: dict[tuple[JobId, RoundHeader], set[Member]] = {}
        self._budgets: dict[JobId, set[int]] = {}
        """Those that operators have given the job."""

    def recorded(self, server: Server, record: Record) -> None:
        if isinstance(record, JobUpdated):
            self._budgets.setdefault(record.job_id, set()).add(record.spec.max_restarts)
        if isinstance(record, RoundSealed):
            key = (record.job_id, record.header)
            self._sealed.setdefault(key, set()).update(record.members)

    def desired_received(self, agent: Agent, wanted: Desired) -> None:
        match wanted:
            case RunOrder(assignment=assignment, max_restarts=max_restarts):
                members = self._sealed.get((agent.host.plan.job_id, header_of(wanted)), set())
                places = [
                    astuple(member.assignment) for member in members if member.name == agent.name
                ]
                name = agent.host.name
                self.require(astuple(assignment) in places, f"{name}: {assignment}, not {places}")
                budgets = self._budgets.get(agent.host.plan.job_id, set())
                is_budget = max_restarts == agent.spec.max_restarts or max_restarts in budgets
                self.require(is_budget, f"{name}: {wanted}")
                self._check_address(agent, wanted)
            case DesiredStop(shutdown_timeout_ms=timeout_ms, text=text):
                expected_ms = agent.spec.shutdown_timeout_ms
                self.require(timeout_ms == expected_ms and bool(text), f"{wanted}")

    def _check_address(self, agent: Agent, order: RunOrder) -> None:
        """Workers get an address of the first node, which alone learns how others reach it."""
        if order.assignment.group_rank:
            self.require(not order.reached_at, f"{agent.host.name}: {order.reached_at}")
            return
        own, address = host_addresses_of(agent.host.plan), order.header.master_addr
        self.require(address in own, f"{agent.host.name} is at {own}, not at {address}")

    def outcome_received(self, agent: Agent, finished: Finished) -> None:
        if finished.verdict.HasField("culprit") and finished.verdict.culprit.pid:
            self._check_culprit(finished.verdict.culprit)

    def _check_culprit(self, culprit: FailedMessage) -> None:
        process = self.world.processes[culprit.pid]
        exit, left = culprit.exit, process.left
        has_ended = exit.HasField("exit_code") or exit.HasField("signal")
        # It may have survived its error, when that had stopped the round already.
        if process.record is not None and (not has_ended or process.has_survived):
            left = process.record
        error = left.error
        expected = (
            process.rank,
            process.local_rank,
            host_name_of(process.host.plan),
            process.exit_code if has_ended else None,
            process.signal if has_ended else None,
            None if error is None else (error.message, error.traceback),
            left.stderr_tail,
            left.error_file,
            left.oom_killed,
        )
        actual = (
            culprit.rank,
            culprit.local_rank,
            culprit.host_name,
            exit.exit_code if exit.HasField("exit_code") else None,
            exit.signal if exit.HasField("signal") else None,
            (exit.error.message, exit.error.traceback) if exit.HasField("error") else None,
            exit.stderr_tail,
            exit.error_file,
            exit.oom_killed,
        )
        self.require(actual == expected, f"\n  {actual}, not\n  {expected}")


NEWS_RULES: tuple[type[Checker], ...] = (NewsIsTrue, OrdersAreTrue)
