"""The one way into the agent's core.

A held round moves through its stages in one direction:

    STARTING -> RUNNING -> SUCCEEDED
        |          |  \\------------.
        +---> FAILED <---+          |
        |         |      |          v
        +---------+------+----> STOPPING -> SWEEPING -> CLEAN -> (nothing held)
                                               ^  |
                                               |  v
                                              BLOCKED

A round is started at most once: only one above `last_round` is. A stop is the stop signal to every
worker's group, the grace, then SIGKILL to everything that the workers started; when the workers
have ended early, what they left behind is killed at once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from rallypoint.agent.core import inputs
from rallypoint.agent.core.drain import drain, finish_drain, leave, noticed
from rallypoint.agent.core.fence import fence_ends_ms, fence_falls_ms, may_start
from rallypoint.agent.core.model import (
    STOPPING_STAGES,
    AgentState,
    BlockedReport,
    DesiredEnd,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
    Ending,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    Held,
    LocalExit,
    LocalWorker,
    ReadyReport,
    RefusedReport,
    RunOrder,
    Stage,
    StartedReport,
    SucceededReport,
)
from rallypoint.agent.core.signals import TELLING
from rallypoint.agent.core.work import SIGTERM, Work, all_ended, end, stop

EXIT_UNREACHABLE = 75
"""EX_TEMPFAIL of sysexits.h: no coordinator, try again later."""
EXIT_SIGNAL_BASE = 128


def step(
    state: AgentState, said: inputs.Input, now_ms: int
) -> tuple[AgentState, tuple[inputs.Effect, ...]]:
    """Return the state after `said`, and what has to be done, in order."""
    work = Work(state, now_ms)
    ends_ms = fence_ends_ms(state)
    is_in_time = isinstance(said, inputs.Confirmed) and ends_ms is not None and now_ms < ends_ms
    if not is_in_time:
        _fall(work)
    _take(work, said)
    _reconcile(work)
    return work.state, tuple(work.effects)


def next_deadline_ms(state: AgentState) -> int | None:
    """Return when something is due although nothing happens, or None."""
    due: list[int] = []
    drain_ms = state.drain.until_ms if state.drain is not None and state.ending is None else None
    for due_ms in (_kill_ms(state), drain_ms, fence_falls_ms(state), _give_up_ms(state)):
        if due_ms is not None:
            due.append(due_ms)
    return min(due, default=None)


def _kill_ms(state: AgentState) -> int | None:
    """Return when the grace of a stop ends: never after the fence."""
    if state.held is None or state.held.kill_ms is None:
        return None
    ends_ms = fence_ends_ms(state)
    return state.held.kill_ms if ends_ms is None else min(state.held.kill_ms, ends_ms)


def _give_up_ms(state: AgentState) -> int | None:
    """Return when the agent gives its coordinator up, or None while there is no reason to.

    The time counts from the last worker's end where that came after the coordinator had gone, so
    that a node which finishes during a long outage can still tell that it did.
    """
    if state.away_since_ms is None or state.ending is not None or not _is_idle(state):
        return None
    workers = () if state.held is None else state.held.workers
    ended_ms = (worker.exit.at_ms for worker in workers if worker.exit is not None)
    return max(state.away_since_ms, *ended_ms, 0) + state.coordinator_timeout_ms


def _is_idle(state: AgentState) -> bool:
    """Return whether nothing is lost by giving up: no worker runs, or the round has failed."""
    held = state.held
    return held is None or not held.is_running or held.stage is Stage.FAILED


def _take(work: Work, said: inputs.Input) -> None:  # noqa: C901  # one flat case per input
    match said:
        case inputs.Welcomed(epoch=epoch):
            work.change(away_since_ms=None, epoch=max(work.state.epoch, epoch))
            work.do(inputs.SendReports())
        case inputs.Disconnected():
            if work.state.away_since_ms is None:
                work.change(away_since_ms=work.now_ms)
        case inputs.Dismissed(exit_code=code, text=text):
            end(work, Ending(code, GoodbyeKind.RELEASED, text))
        case inputs.Acknowledged(sequence=sequence):
            _forget_reports(work, sequence)
        case inputs.Confirmed(sent_ms=sent_ms):
            _confirmed(work, sent_ms)
        case inputs.DesiredCame(epoch=epoch, revision=revision, desired=desired):
            if epoch >= work.state.epoch and revision >= work.state.revision:
                work.change(epoch=epoch, revision=revision, desired=desired)
        case inputs.PortReserved(port=port):
            _port_reserved(work, port)
        case inputs.WorkerStarted():
            _worker_started(work, said)
        case inputs.WorkerNotStarted():
            _worker_not_started(work, said)
        case inputs.WorkerEnded():
            _worker_ended(work, said)
        case inputs.Swept(token=token):
            _swept(work, token)
        case inputs.SweepBlocked(token=token, pids=pids):
            _sweep_blocked(work, token, pids)
        case inputs.SignalReceived(signum=signum):
            _signalled(work, signum)
        case inputs.NoticesCame(notices=notices):
            noticed(work, notices)
        case inputs.TimePassed():
            pass
        case _:
            assert_never(said)


def _forget_reports(work: Work, sequence: int) -> None:
    done = min(sequence - work.state.acknowledged, len(work.state.reports))
    if done > 0:
        work.change(acknowledged=work.state.acknowledged + done, reports=work.state.reports[done:])


def _confirmed(work: Work, sent_ms: int) -> None:
    work.change(confirmed_ms=max(sent_ms, work.state.confirmed_ms or sent_ms))
    ends_ms = fence_ends_ms(work.state)
    if ends_ms is not None:
        work.do(inputs.ArmFence(ends_ms))


def _fall(work: Work) -> None:
    """Stop the workers if nobody has confirmed a heartbeat for too long."""
    state, falls_ms = work.state, fence_falls_ms(work.state)
    if falls_ms is None or work.now_ms < falls_ms:
        return
    assert state.held is not None and state.confirmed_ms is not None
    silent_ms = work.now_ms - state.confirmed_ms
    work.do(inputs.FenceFell(state.held.order.number, silent_ms))
    stop(work, max(0, state.fence_ms - silent_ms))


# --- What the node's processes say --------------------------------------------------------------


def _held_worker(work: Work, round: int, local_rank: int) -> tuple[Held, LocalWorker] | None:
    held = work.state.held
    if held is None or held.order.number != round:
        return None
    return held, held.workers[local_rank]


def _with_worker(held: Held, worker: LocalWorker) -> Held:
    workers = tuple(
        worker if other.local_rank == worker.local_rank else other for other in held.workers
    )
    return replace(held, workers=workers)


def _worker_started(work: Work, said: inputs.WorkerStarted) -> None:
    found = _held_worker(work, said.round, said.local_rank)
    if found is None:
        return
    held, worker = found
    held = _with_worker(held, replace(worker, pid=said.pid, started_ms=work.now_ms))
    if held.stage is Stage.STOPPING:
        work.do(inputs.SignalWorkers(SIGTERM))  # the stop came before this one was there
    elif work.state.drain is not None and held.stage is Stage.STARTING:
        work.do(inputs.SignalWorkers(work.state.drain_signal))
    if held.stage is Stage.STARTING and all(worker.pid for worker in held.workers):
        held = replace(held, stage=Stage.RUNNING)
        pids = tuple(worker.pid for worker in held.workers)
        work.report(StartedReport(held.order.number, pids))
    work.hold(held)


def _worker_not_started(work: Work, said: inputs.WorkerNotStarted) -> None:
    found = _held_worker(work, said.round, said.local_rank)
    if found is None:
        return
    held, worker = found
    exit = LocalExit(127, None, work.now_ms, True, None, said.text)
    held = _with_worker(held, replace(worker, exit=exit))
    if held.stage not in STOPPING_STAGES:
        if held.stage is not Stage.FAILED:
            work.report(RefusedReport(held.order.number, False, said.text))
        held = replace(held, stage=Stage.FAILED)
    work.hold(held)


def _worker_ended(work: Work, said: inputs.WorkerEnded) -> None:
    found = _held_worker(work, said.round, said.local_rank)
    if found is None or found[1].exit is not None:
        return
    held, worker = found
    ended_ms, signalled_ms = work.now_ms - said.ago_ms, held.signalled_ms
    # A worker that ended while its last words were read, and the stop came meanwhile, was first.
    was_first = signalled_ms is None or ended_ms < signalled_ms
    exit = LocalExit(
        said.exit_code,
        said.signal,
        ended_ms,
        not was_first,
        said.error,
        said.stderr_tail,
        signalled_before_ms=None if was_first else ended_ms - (signalled_ms or 0),
        oom_killed=said.oom_killed,
        failed_ms=said.failed_ms,
        error_file=said.error_file,
    )
    worker = replace(worker, exit=exit)
    held = _with_worker(held, worker)
    work.report(ExitedReport(held.order.number, worker))
    if held.stage not in STOPPING_STAGES and work.state.drain is None:
        if exit.exit_code != 0:
            held = replace(held, stage=Stage.FAILED)
        elif held.stage is Stage.RUNNING and all_ended(held):
            held = replace(held, stage=Stage.SUCCEEDED)
            work.report(SucceededReport(held.order.number))
    work.hold(held)


def _swept(work: Work, token: int) -> None:
    held = work.state.held
    if held is None or token != work.state.sweep_token:
        return
    if held.stage in (Stage.SWEEPING, Stage.BLOCKED):
        work.hold(replace(held, stage=Stage.CLEAN, kill_ms=None))
        work.do(inputs.ReservePort())


def _sweep_blocked(work: Work, token: int, pids: tuple[int, ...]) -> None:
    held = work.state.held
    if held is not None and token == work.state.sweep_token and held.stage is Stage.SWEEPING:
        work.hold(replace(held, stage=Stage.BLOCKED))
        work.report(BlockedReport(held.order.number, pids))


def _port_reserved(work: Work, port: int) -> None:
    work.change(port=port)
    held = work.state.held
    if held is not None and held.stage is Stage.CLEAN:
        work.change(held=None)
        if work.state.ending is None:
            work.report(ReadyReport(work.state.last_round, port))


# --- Signals ------------------------------------------------------------------------------------


def _signalled(work: Work, signum: int) -> None:
    """Do what a signal means, by what it is for and by how far the agent is.

                     for telling              for ending
    workers run      each worker gets it      passed on, and the agent leaves or drains
    nothing runs     nobody hears it          the agent leaves
    it ends          nobody hears it          what is left is killed at once
    """
    state, held = work.state, work.state.held
    is_running = state.ending is None and held is not None and held.is_running
    if signum in TELLING:
        number = held.order.number if held is not None and is_running else None
        work.do(inputs.ForwardSignal(signum, number))
    elif state.ending is None:
        _leave(work, signum)
    elif held is not None:
        _sweep(work)


def _leave(work: Work, signum: int) -> None:
    text = f"the agent got signal {signum}"
    ending = Ending(EXIT_SIGNAL_BASE + signum, GoodbyeKind.SIGNAL, text)
    if signum == SIGTERM and work.state.drain is None and work.state.drain_ms:
        drain(work, work.state.drain_ms, text, ending)
    else:
        leave(work, ending, signum)


# --- What follows -------------------------------------------------------------------------------


def _reconcile(work: Work) -> None:
    """Do what brings the node closer to what it has to be."""
    _give_up_if_alone(work)
    _take_desired(work)
    finish_drain(work)
    held = work.state.held
    if held is not None:
        if work.state.ending is not None and held.stage not in STOPPING_STAGES:
            stop(work, work.state.grace_ms)
        _push_stop(work)
    elif work.state.ending is not None and not work.state.ending.is_told:
        ending = work.state.ending
        work.report(GoodbyeReport(ending.kind, ending.text))
        work.change(ending=replace(ending, is_told=True))
        work.do(inputs.Exit(ending.exit_code, ending.text))


def _give_up_if_alone(work: Work) -> None:
    state, give_up_ms = work.state, _give_up_ms(work.state)
    if give_up_ms is not None and work.now_ms >= give_up_ms:
        seconds = state.coordinator_timeout_ms / 1000
        text = f"no coordinator answered for {seconds:g} s"
        end(work, Ending(EXIT_UNREACHABLE, GoodbyeKind.ERROR, text))


def _take_desired(work: Work) -> None:
    state, held = work.state, work.state.held
    if state.ending is not None:
        return
    match state.desired:
        case DesiredRun(order=order):
            _take_run(work, order)
        case DesiredStop(round=number, grace_ms=grace_ms):
            _take_stop(work, number, grace_ms)
        case DesiredStandby() if held is not None:
            stop(work, state.grace_ms)
        case DesiredEnd(is_release=True) if state.drain is not None:
            end(work, state.drain.ending)
        case DesiredEnd(exit_code=code, text=text):
            end(work, Ending(code, GoodbyeKind.FINISHED, text))


def _take_run(work: Work, order: RunOrder) -> None:
    state, held = work.state, work.state.held
    if held is not None and held.order.number < order.number:
        stop(work, state.grace_ms)
    elif (
        held is None
        and state.port
        and state.drain is None
        and order.number > state.last_round
        and may_start(state, work.now_ms)
    ):
        workers = tuple(LocalWorker(rank) for rank in range(state.workers))
        work.change(held=Held(order, workers), last_round=order.number, port=0, notices=())
        work.do(inputs.StartWorkers(order))


def _take_stop(work: Work, number: int, grace_ms: int) -> None:
    state, held = work.state, work.state.held
    if held is not None:
        if held.order.number <= number:
            stop(work, grace_ms)
    elif state.last_round < number and state.port:
        # The round was stopped before its order came: it will never start here.
        work.change(last_round=number)
        work.report(ReadyReport(number, state.port))


def _push_stop(work: Work) -> None:
    """Kill what is left once the workers have ended or their grace has."""
    held = work.state.held
    assert held is not None
    kill_ms = _kill_ms(work.state)
    if held.stage is not Stage.STOPPING or kill_ms is None:
        return
    if all_ended(held) or work.now_ms >= kill_ms:
        _sweep(work)


def _sweep(work: Work) -> None:
    held = work.state.held
    assert held is not None
    if held.stage in (Stage.SWEEPING, Stage.BLOCKED, Stage.CLEAN):
        return
    token = work.state.sweep_token + 1
    work.change(sweep_token=token, held=replace(held, stage=Stage.SWEEPING, kill_ms=None))
    work.do(inputs.Sweep(token))
