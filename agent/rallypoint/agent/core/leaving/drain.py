"""How a node leaves: after a drain, or at once; and what a signal to the agent does.

During a drain the workers find a notice and run until they are done or their time is up. They get a
signal only if the user chose one: a script without a handler would die of it. The agent enforces
that time itself, with or without a coordinator. An exit during a drain is neither success nor
failure: the worker has left.
"""

from __future__ import annotations

from rallypoint.agent.core.desired import Notice
from rallypoint.agent.core.effects import ForwardSignal, SignalWorkers, WriteNotices
from rallypoint.agent.core.held_round import Stage
from rallypoint.agent.core.leaving.signals import FORWARDED_ONLY, describe_signal
from rallypoint.agent.core.reports import DrainingReport, GoodbyeKind, LeavingReport
from rallypoint.agent.core.state import Drain, Ending
from rallypoint.agent.core.work import SIGTERM, Work, end, stop, sweep
from rallypoint.base.exit_codes import EXIT_SIGNAL_BASE


def leave(work: Work, ending: Ending, signum: int = SIGTERM) -> None:
    """Stop the workers and end; the report lets peers stop before connections break."""
    end(work, ending)
    held = work.state.held
    if held is not None and not held.is_stopping:
        work.report(LeavingReport(held.number, ending.text))
        stop(work, work.state.shutdown_timeout_ms, signum)


def give_up(work: Work, number: int, text: str) -> None:
    """Stop a round that the launcher of its workers gives up; the node takes part in the next.

    A round that has succeeded here stays so, and one that has failed here ends anyway.
    """
    held = work.state.held
    if held is None or held.number != number or held.is_stopping:
        return
    if held.stage is not Stage.SUCCEEDED:
        if held.stage is not Stage.FAILED:
            work.report(LeavingReport(number, text))
        stop(work, work.state.shutdown_timeout_ms)


def begin_drain(work: Work, time_ms: int, reason: str, ending: Ending) -> None:
    """Drain this node within `time_ms`; a second drain can only shorten the time."""
    state, held, drain = work.state, work.state.held, work.state.drain
    if state.ending is not None:
        return
    until_ms = work.now_ms + time_ms
    if drain is not None:
        work.change(drain=Drain(min(until_ms, drain.until_ms), drain.reason, drain.ending))
        return
    work.change(drain=Drain(until_ms, reason, ending))
    if held is None:
        return
    # Also while a round is stopping: the next round must not include this node.
    work.report(DrainingReport(until_ms, reason))
    if held.is_stopping:
        return
    work.hold(held.drained(work.now_ms))
    notify_workers(work)
    if time_ms:
        signal_drain(work)


def follow_drain(work: Work) -> None:
    """Drain because the desired state says so; its end may come closer while the node drains."""
    wanted, drain = work.state.desired_drain, work.state.drain
    if wanted is None or (drain is not None and drain.until_ms <= wanted.until_ms):
        return
    ending = Ending(0, GoodbyeKind.DRAINED, f"drained: {wanted.reason}")
    begin_drain(work, max(0, wanted.until_ms - work.now_ms), wanted.reason, ending)


def apply_notices(work: Work, notices: tuple[Notice, ...]) -> None:
    """Keep the coordinator's notices about the round and other nodes."""
    work.change(notices=notices)
    notify_workers(work)


def notify_workers(work: Work) -> None:
    """Write the notices of the held round to the file that its workers check."""
    held, drain = work.state.held, work.state.drain
    if held is None or held.is_stopping:
        return
    notices = work.state.notices
    if drain is not None:
        own = Notice("drain", "", drain.reason, drain.until_ms, is_here=True)
        notices = (own, *notices)
    work.do(WriteNotices(held.number, notices))


def signal_drain(work: Work) -> None:
    """Send the workers the drain signal, if the user chose one."""
    if work.state.drain_signal is not None:
        work.do(SignalWorkers(work.state.drain_signal))


def finish_drain(work: Work) -> None:
    """Leave when the workers are done, or their time is up."""
    drain, held = work.state.drain, work.state.held
    if drain is None or work.state.ending is not None:
        return
    is_done = held is None or (not held.is_stopping and held.all_ended)
    if is_done or work.now_ms >= drain.until_ms:
        leave(work, drain.ending)


def apply_signal(work: Work, signum: int) -> None:
    """Act on a signal, by its kind and the state of the agent.

                         forwarded only           ends the agent
    workers run          each worker gets it      forwarded, and the agent leaves or drains
    nothing runs         logged only              the agent leaves
    the agent ends       logged only              SIGKILL for the rest, at once
    """
    state, held = work.state, work.state.held
    is_running = state.ending is None and held is not None and held.is_running
    if signum in FORWARDED_ONLY:
        number = held.number if held is not None and is_running else None
        work.do(ForwardSignal(signum, number))
    elif state.ending is None:
        _leave_on_signal(work, signum)
    elif held is not None:
        sweep(work)


def _leave_on_signal(work: Work, signum: int) -> None:
    text = describe_signal(signum)
    ending = Ending(EXIT_SIGNAL_BASE + signum, GoodbyeKind.SIGNAL, text)
    if signum == SIGTERM and work.state.drain is None and work.state.drain_ms:
        begin_drain(work, work.state.drain_ms, text, ending)
    else:
        leave(work, ending, signum)
