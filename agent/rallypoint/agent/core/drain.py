"""How a node leaves: with notice, or at once.

With notice its workers are told and go on, until they are done or their time is over; the agent
keeps that time by itself, coordinator or not. An exit after the notice is neither success
nor failure: the worker has left.
"""

from __future__ import annotations

from dataclasses import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import (
    STOPPING_STAGES,
    Drain,
    DrainingReport,
    Ending,
    GoodbyeKind,
    Notice,
    RefusedReport,
)
from rallypoint.agent.core.work import SIGTERM, Work, all_ended, end, stop


def leave(work: Work, ending: Ending, signum: int = SIGTERM) -> None:
    """End now, with the workers stopped; their peers are told before their connections break."""
    end(work, ending)
    held = work.state.held
    if held is not None and held.stage not in STOPPING_STAGES:
        work.report(RefusedReport(held.order.number, True, ending.text))
        stop(work, work.state.grace_ms, signum)


def drain(work: Work, time_ms: int, reason: str, ending: Ending) -> None:
    """Want to leave: tell the workers, and let them go on; of several ends the first counts."""
    state, held = work.state, work.state.held
    if state.ending is not None:
        return
    until_ms = work.now_ms + time_ms
    if state.drain is not None:
        until_ms = min(until_ms, state.drain.until_ms)
        work.change(drain=replace(state.drain, until_ms=until_ms))
        return
    work.change(drain=Drain(until_ms, reason, ending))
    if held is None:
        return
    # Also while a round is stopped: once it is clean here, the next one must not count on it.
    work.report(DrainingReport(until_ms, reason))
    if held.stage in STOPPING_STAGES:
        return
    work.hold(replace(held, signalled_ms=work.now_ms))
    tell_workers(work)
    if time_ms:
        work.do(inputs.SignalWorkers(state.drain_signal))


def noticed(work: Work, notices: tuple[Notice, ...]) -> None:
    """Take what is about to happen; when it is this node that leaves, an operator has asked it."""
    work.change(notices=notices)
    asked = next((notice for notice in notices if notice.is_here), None)
    if asked is not None:
        ending = Ending(0, GoodbyeKind.DRAINED, f"drained: {asked.reason}")
        drain(work, max(0, asked.until_ms - work.now_ms), asked.reason, ending)
    tell_workers(work)


def tell_workers(work: Work) -> None:
    """Let the workers find what is about to happen to their round."""
    held, drain = work.state.held, work.state.drain
    if held is None or held.stage in STOPPING_STAGES:
        return
    notices = work.state.notices
    if drain is not None:
        own = Notice("drain", "", drain.reason, drain.until_ms, is_here=True)
        notices = (own, *(notice for notice in notices if not notice.is_here))
    work.do(inputs.TellWorkers(held.order.number, notices))


def finish_drain(work: Work) -> None:
    """Leave when the workers are done, or their time is over."""
    drain, held = work.state.drain, work.state.held
    if drain is None or work.state.ending is not None:
        return
    if held is None or (held.stage not in STOPPING_STAGES and all_ended(held)):
        leave(work, drain.ending)
    elif work.now_ms >= drain.until_ms:
        leave(work, drain.ending)
