"""The entry to the agent's core: `step`.

A round starts at most once, and only if its number is above `last_round`. A stop signals every
worker's group, waits for the shutdown timeout, then sends SIGKILL to everything that the workers
started. When all workers end earlier, the SIGKILL is sent at once. Shortly before it, those that
still live are looked at, so that the log says why they did not end.
"""

from __future__ import annotations

from typing import assert_never

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredEnd, DesiredStandby, DesiredStop, RunOrder
from rallypoint.agent.core.fence import fence_kill_ms, fence_stop_ms, may_start
from rallypoint.agent.core.held_round import HeldRound, LocalExit, LocalWorker, Stage
from rallypoint.agent.core.leaving.away import (
    end_undecided,
    give_up_if_alone,
    give_up_ms,
    log_awaited_outcome,
)
from rallypoint.agent.core.leaving.drain import (
    apply_notices,
    apply_signal,
    finish_drain,
    follow_drain,
    give_up,
    leave,
)
from rallypoint.agent.core.milestones import reach
from rallypoint.agent.core.progress import see_progress
from rallypoint.agent.core.reports import (
    BlockedReport,
    ExitedReport,
    GoodbyeKind,
    GoodbyeReport,
    ReadyReport,
    RecordedReport,
    StartedReport,
    StartFailedReport,
    SucceededReport,
)
from rallypoint.agent.core.state import AgentState, Ending, PortWait
from rallypoint.agent.core.work import Work, end, report_silence, stop, sweep
from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_SOFTWARE

EXIT_CANNOT_START = 127
"""The exit code of a shell for a command that it cannot start."""
PORT_RETRY_MS_MIN = 100
PORT_RETRY_MS_MAX = 5_000
"""Pauses between attempts to reserve a port; each is twice as long as the one before. Without
jitter: what is short belongs to this machine, or to this agent."""


def step(
    state: AgentState, input: inputs.Input, now_ms: int
) -> tuple[AgentState, tuple[effects.Effect, ...]]:
    """Return the state after `input`, and the effects, in order."""
    work = Work(state, now_ms)
    kill_ms = fence_kill_ms(state)
    is_in_time = isinstance(input, inputs.Confirmed) and kill_ms is not None and now_ms < kill_ms
    if not is_in_time:
        _enforce_fence(work)
    _apply(work, input)
    _reconcile(work)
    return work.state, tuple(work.effects)


def next_deadline_ms(state: AgentState) -> int | None:
    """Return when the next step is due even without an input, or None."""
    due: list[int] = []
    drain_ms = state.drain.until_ms if state.drain is not None and state.ending is None else None
    times = (_kill_ms(state), drain_ms, fence_stop_ms(state), give_up_ms(state), _port_ms(state))
    for due_ms in (*times, _look_ms(state)):
        if due_ms is not None:
            due.append(due_ms)
    return min(due, default=None)


def _kill_ms(state: AgentState) -> int | None:
    """Return when SIGKILL follows a stop: after the shutdown timeout, but never after the fence."""
    if state.held is None or state.held.kill_ms is None:
        return None
    fence_ms = fence_kill_ms(state)
    return state.held.kill_ms if fence_ms is None else min(state.held.kill_ms, fence_ms)


def _look_ms(state: AgentState) -> int | None:
    """Return when the workers are looked at that a stop has not ended."""
    kill_ms = _kill_ms(state)
    if state.held is None or kill_ms is None or not state.held.look_ms:
        return None
    return kill_ms - state.held.look_ms


def _apply(work: Work, input: inputs.Input) -> None:  # noqa: C901, PLR0915  # a case per input
    match input:
        case inputs.Welcomed():
            work.welcome(input)
        case inputs.Disconnected():
            if work.state.away_since_ms is None:
                work.change(away_since_ms=work.now_ms)
                log_awaited_outcome(work)
        case inputs.Dismissed(exit_code=code, text=text):
            end_undecided(work, code, text, GoodbyeKind.RELEASED)
        case inputs.Acknowledged(sequence=sequence):
            work.forget_reports(sequence)
        case inputs.Confirmed(sent_ms=sent_ms):
            _on_confirmed(work, sent_ms)
        case inputs.DesiredReceived(epoch=epoch, revision=revision, desired=desired, drain=drain):
            if epoch >= work.state.epoch and revision >= work.state.revision:
                work.change(epoch=epoch, revision=revision, desired=desired, desired_drain=drain)
        case inputs.PortReserved(port=port):
            _on_port_reserved(work, port)
        case inputs.PortNotReserved(text=text):
            _on_port_not_reserved(work, text)
        case inputs.WorkerStarted():
            _on_worker_started(work, input)
        case inputs.WorkerNotStarted():
            _on_worker_not_started(work, input)
        case inputs.WorkersNotPrepared():
            _on_workers_not_prepared(work, input)
        case inputs.MilestoneReached():
            reach(work, input)
        case inputs.ProgressSeen():
            see_progress(work, input)
        case inputs.WorkerRecorded():
            _on_worker_recorded(work, input)
        case inputs.WorkerEnded():
            _on_worker_ended(work, input)
        case inputs.Swept(token=token):
            _on_swept(work, token)
        case inputs.SweepBlocked(token=token, pids=pids):
            _on_sweep_blocked(work, token, pids)
        case inputs.HelperSilent(pid=pid):
            _on_helper_silent(work, pid)
        case inputs.HelperAnswered():
            _on_helper_answered(work)
        case inputs.SignalReceived(signum=signum):
            apply_signal(work, signum)
        case inputs.NoticesReceived(notices=notices):
            apply_notices(work, notices)
        case inputs.RoundGivenUp(round=number, text=text):
            give_up(work, number, text)
        case inputs.LeaveRequested(exit_code=code, text=text):
            kind = GoodbyeKind.ERROR if code else GoodbyeKind.RELEASED
            leave(work, Ending(code, kind, text))
        case inputs.AgentFailed(text=text):
            leave(work, Ending(EXIT_SOFTWARE, GoodbyeKind.ERROR, f"internal error: {text}"))
        case inputs.TimePassed():
            pass
        case _:
            assert_never(input)


def _on_confirmed(work: Work, sent_ms: int) -> None:
    work.change(confirmed_ms=max(sent_ms, work.state.confirmed_ms or sent_ms))
    kill_ms = fence_kill_ms(work.state)
    if kill_ms is not None:
        work.do(effects.ArmFence(kill_ms))


def _enforce_fence(work: Work) -> None:
    """Stop the workers if no heartbeat was confirmed for too long."""
    state, stop_ms = work.state, fence_stop_ms(work.state)
    if stop_ms is None or work.now_ms < stop_ms:
        return
    assert state.held is not None and state.confirmed_ms is not None
    unconfirmed_ms = work.now_ms - state.confirmed_ms
    work.do(effects.LogFence(state.held.number, unconfirmed_ms))
    stop(work, max(0, state.fence_ms - unconfirmed_ms))


# --- The node's processes -----------------------------------------------------------------------


_Word = inputs.WorkerStarted | inputs.WorkerNotStarted | inputs.WorkerRecorded | inputs.WorkerEnded


def _held_worker(work: Work, word: _Word, what: str) -> tuple[HeldRound, LocalWorker] | None:
    """Return the held round and the worker that the word is of, or log that it is dropped."""
    held = work.state.held
    if held is None or held.number != word.round:
        work.do(effects.LogDropped(word.round, word.local_rank, what))
        return None
    return held, held.workers[word.local_rank]


def _on_worker_started(work: Work, started: inputs.WorkerStarted) -> None:
    match = _held_worker(work, started, "started")
    if match is None:
        return
    held, worker = match
    held = held.with_worker(worker.started(started.pid, work.now_ms))
    if held.stage is Stage.STARTING and all(worker.pid for worker in held.workers):
        held = held.moved(Stage.RUNNING)
        pids = tuple(worker.pid for worker in held.workers)
        work.report(StartedReport(held.number, pids))
        work.change(unprepared_rounds=0, has_started=True)
    work.hold(held)


def _on_worker_not_started(work: Work, refused: inputs.WorkerNotStarted) -> None:
    match = _held_worker(work, refused, f"not started: {refused.text}")
    if match is None:
        return
    held, worker = match
    exit = LocalExit(EXIT_CANNOT_START, None, work.now_ms, True, None, refused.text)
    held = held.with_worker(worker.ended(exit))
    if not held.is_stopping and held.stage is not Stage.FAILED:
        # What was there once is rather away than missing, for example because a network file
        # system is: a restart may find it again.
        is_permanent = refused.is_missing and not work.state.has_started
        work.report(StartFailedReport(held.number, refused.text, is_permanent))
        held = held.start_failed(refused.text)
    work.hold(held)


def _on_workers_not_prepared(work: Work, refused: inputs.WorkersNotPrepared) -> None:
    """Give up the round: the node cannot take part, but no worker has failed."""
    held = work.state.held
    if held is None or held.number != refused.round:
        return
    exit = LocalExit(EXIT_CANNOT_START, None, work.now_ms, True, None, refused.text)
    for worker in held.workers:
        held = held.with_worker(worker.ended(exit))
    work.hold(held)
    rounds = work.state.unprepared_rounds + 1
    work.change(unprepared=refused.text, unprepared_rounds=rounds)
    if not held.is_stopping:
        work.report(BlockedReport(held.number, (), refused.text))
        stop(work, 0)


def _on_worker_recorded(work: Work, recorded: inputs.WorkerRecorded) -> None:
    """Count a worker as failed although it still runs, unless a signal of ours came first."""
    match = _held_worker(work, recorded, f"recorded an error: {recorded.error.message}")
    if match is None or match[1].outcome is not None:
        return
    held, worker = match
    exit = _local_exit(work, recorded, held.signalled_ms)
    if not exit.is_failure:
        return
    worker = worker.failed(exit)
    held = held.with_worker(worker)
    work.report(RecordedReport(held.number, worker))
    if not held.is_stopping and work.state.drain is None and held.stage is not Stage.FAILED:
        held = held.moved(Stage.FAILED)
    work.hold(held)


def _on_worker_ended(work: Work, ended: inputs.WorkerEnded) -> None:
    match = _held_worker(work, ended, _describe_end(ended))
    if match is None or match[1].exit is not None:
        return
    held, worker = match
    worker = worker.ended(_local_exit(work, ended, _find_signal_ms(held, ended)))
    held = held.with_worker(worker)
    work.report(ExitedReport(held.number, worker))
    if not held.is_stopping and work.state.drain is None:
        if ended.exit_code != 0:
            held = held if held.stage is Stage.FAILED else held.moved(Stage.FAILED)
        elif held.stage is Stage.FAILED:
            held = _withdraw_failure(work, held)
        if held.stage is Stage.RUNNING and held.all_ended:
            held = held.moved(Stage.SUCCEEDED)
            work.report(SucceededReport(held.number))
    work.hold(held)
    log_awaited_outcome(work)


def _withdraw_failure(work: Work, held: HeldRound) -> HeldRound:
    """Let the round continue if the worker that has just ended with 0 was its only failure."""
    held = held.without_failure()
    if held.stage is Stage.RUNNING:  # a node that has failed does not report its start
        work.report(StartedReport(held.number, tuple(worker.pid for worker in held.workers)))
    return held


def _find_signal_ms(held: HeldRound, ended: inputs.WorkerEnded) -> int | None:
    """Return when the worker was first signalled, or drained; None: it was neither."""
    if held.signalled_ms is None:  # the fence of the helper alone: peers have to learn of a failure
        return None
    times_ms = (ended.signalled_ms, held.drained_ms)
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)


def _describe_end(ended: inputs.WorkerEnded) -> str:
    code, signum = ended.exit_code, ended.signal
    return f"exit code {code}" if signum is None else f"signal {signum}"


def _local_exit(
    work: Work, ended: inputs.WorkerEnded | inputs.WorkerRecorded, signalled_ms: int | None
) -> LocalExit:
    # Times decide what came first, not the order of inputs: the agent may have stood still, or may
    # still have read the last output at the stop.
    at_ms = work.now_ms if ended.at_ms is None else ended.at_ms
    is_first = signalled_ms is None or at_ms < signalled_ms
    exit_code, signum, oom_killed = None, None, False
    if isinstance(ended, inputs.WorkerEnded):
        exit_code, signum, oom_killed = ended.exit_code, ended.signal, ended.oom_killed
    return LocalExit(
        exit_code,
        signum,
        at_ms,
        not is_first,
        ended.error,
        ended.stderr_tail,
        signalled_before_ms=None if is_first else at_ms - (signalled_ms or 0),
        oom_killed=oom_killed,
        failed_ms=ended.failed_ms,
        error_file=ended.error_file,
        stderr_file=ended.stderr_file,
    )


def _on_swept(work: Work, token: int) -> None:
    held = work.state.held
    if held is None or token != work.state.sweep_token:
        return
    if held.stage in (Stage.SWEEPING, Stage.BLOCKED):
        work.hold(held.moved(Stage.CLEAN))
        if work.state.ending is None:
            if work.state.unprepared:  # without pauses, rounds that begin and fail would end a job
                _retry_later(work, work.now_ms, work.state.unprepared_rounds, work.state.unprepared)
            else:
                work.do(effects.ReservePort())


def _on_sweep_blocked(work: Work, token: int, pids: tuple[int, ...]) -> None:
    held = work.state.held
    if held is not None and token == work.state.sweep_token and held.stage is Stage.SWEEPING:
        work.hold(held.moved(Stage.BLOCKED))
        work.report(BlockedReport(held.number, pids))


def _on_helper_silent(work: Work, pid: int) -> None:
    work.change(silent_helper=pid)
    if work.state.held is not None and work.state.held.is_stopping:
        report_silence(work)


def _on_helper_answered(work: Work) -> None:
    """Correct what a stop has reported of a silent helper."""
    held, was_silent = work.state.held, bool(work.state.silent_helper)
    work.change(silent_helper=0)
    if was_silent and held is not None and held.is_stopping and held.stage is not Stage.CLEAN:
        work.report(BlockedReport(held.number, (), "its workers have not ended"))


def _on_port_reserved(work: Work, port: int) -> None:
    work.change(port=port, port_wait=None, unprepared="")
    held = work.state.held
    if held is not None and held.stage is Stage.CLEAN:
        work.let_go()
        if work.state.ending is None:
            work.report(ReadyReport(work.state.last_round, port))


def _on_port_not_reserved(work: Work, text: str) -> None:
    """Try again after a pause; meanwhile the node is not ready, and can only leave."""
    wait = work.state.port_wait
    since_ms, attempts = (work.now_ms, 1) if wait is None else (wait.since_ms, wait.attempts + 1)
    _retry_later(work, since_ms, attempts, text)


def _retry_later(work: Work, since_ms: int, attempts: int, text: str) -> None:
    pause_ms = min(PORT_RETRY_MS_MIN << min(attempts - 1, 16), PORT_RETRY_MS_MAX)
    work.change(port_wait=PortWait(since_ms, attempts, work.now_ms + pause_ms, text))


def _port_ms(state: AgentState) -> int | None:
    """Return when the next attempt to reserve a port is due, or the agent gives up; or None."""
    wait = state.port_wait
    if wait is None or wait.retry_ms is None or state.ending is not None:
        return None
    return min(wait.retry_ms, _give_up_port_ms(state, wait))


def _give_up_port_ms(state: AgentState, wait: PortWait) -> int:
    return wait.since_ms + state.coordinator_timeout_ms


def _reserve_again(work: Work) -> None:
    """Make the attempt to reserve a port that is due, or give up."""
    state, wait, due_ms = work.state, work.state.port_wait, _port_ms(work.state)
    if wait is None or due_ms is None or work.now_ms < due_ms:
        return
    if work.now_ms >= _give_up_port_ms(state, wait):
        seconds = state.coordinator_timeout_ms / 1000
        what = "files could be made" if state.unprepared else "port could be reserved"
        text = f"no {what} for {seconds:g} s: {wait.text}"
        end(work, Ending(EXIT_FAILED, GoodbyeKind.ERROR, text))
    else:
        work.change(port_wait=PortWait(wait.since_ms, wait.attempts, None, wait.text))
        work.do(effects.ReservePort(checks_files=bool(state.unprepared)))


# --- Towards the desired state ------------------------------------------------------------------


def _reconcile(work: Work) -> None:
    """Do what brings the node closer to its desired state."""
    give_up_if_alone(work)
    _reserve_again(work)
    follow_drain(work)
    _follow_desired(work)
    finish_drain(work)
    ending, held = work.state.ending, work.state.held
    if ending is not None and held is not None and held.stage is Stage.CLEAN:
        work.let_go()  # a node that leaves needs no port
        held = None
    if held is not None:
        if ending is not None and not held.is_stopping:
            stop(work, work.state.shutdown_timeout_ms)
        _escalate_stop(work)
    elif ending is not None and not ending.goodbye_sent:
        work.report(GoodbyeReport(ending.kind, ending.text))
        work.change(ending=Ending(ending.exit_code, ending.kind, ending.text, goodbye_sent=True))
        work.do(effects.Exit(ending.exit_code, ending.text))


def _follow_desired(work: Work) -> None:
    state, held = work.state, work.state.held
    if state.ending is not None:
        return
    match state.desired:
        case RunOrder() as order:
            _follow_order(work, order)
        case DesiredStop(round=number, shutdown_timeout_ms=shutdown_timeout_ms):
            _follow_stop(work, number, shutdown_timeout_ms)
        case DesiredStandby() if held is not None:
            stop(work, state.shutdown_timeout_ms)
        case DesiredEnd(is_release=True) if state.drain is not None:
            end(work, state.drain.ending)
        case DesiredEnd(exit_code=code, text=text):
            end(work, Ending(code, GoodbyeKind.FINISHED, text))


def _follow_order(work: Work, order: RunOrder) -> None:
    state, held = work.state, work.state.held
    if held is not None and held.number < order.number:
        stop(work, state.shutdown_timeout_ms)
    elif (
        held is None
        and state.port
        and state.drain is None
        and order.number > state.last_round
        and may_start(state, work.now_ms)
    ):
        workers = tuple(LocalWorker(rank) for rank in range(state.workers))
        work.change(held=HeldRound(order, workers), last_round=order.number, port=0, notices=())
        work.do(effects.StartWorkers(order))


def _follow_stop(work: Work, number: int, shutdown_timeout_ms: int) -> None:
    state, held = work.state, work.state.held
    if held is not None:
        if held.number <= number:
            stop(work, shutdown_timeout_ms)
    elif state.last_round < number and state.port:
        # The round was stopped before its start here, so it never starts.
        work.change(last_round=number)
        work.report(ReadyReport(number, state.port))


def _escalate_stop(work: Work) -> None:
    """Kill the remaining processes once the workers have ended or the timeout is over."""
    held, kill_ms, look_ms = work.state.held, _kill_ms(work.state), _look_ms(work.state)
    assert held is not None
    if held.stage is not Stage.STOPPING or kill_ms is None:
        return
    if held.all_ended or work.now_ms >= kill_ms:
        sweep(work)
    elif look_ms is not None and work.now_ms >= look_ms:
        work.hold(held.looked())
        work.do(effects.LogSurvivors(kill_ms - work.now_ms))
