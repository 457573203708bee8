"""Signals to a program that runs an agent in its main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from rallypoint.agent.core.leaving.signals import FORWARDED_ONLY
from rallypoint.base.log import get_logger
from rallypoint.elastic.errors import SignalException

if TYPE_CHECKING:
    from rallypoint.elastic.node.seat import Seat

log = get_logger()

DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torch's default."""


def parse_signals(names: str) -> tuple[signal.Signals, ...]:
    """Return the signals with these names, separated by commas; names that do not exist are logged.

    A signal that the program ignores, as nohup ignores SIGHUP, stays ignored.
    """
    signals = []
    for name in (part.strip() for part in names.split(",")):
        if not name:
            continue
        one = getattr(signal.Signals, name, None)
        if one is None:
            log.warning("signal_not_recognized", name=name, then="it is not handled")
        elif one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
            signals.append(one)
    return tuple(dict.fromkeys(signals))


@contextmanager
def handling_signals(
    signals: Sequence[signal.Signals], find_seat: Callable[[], Seat | None]
) -> Iterator[None]:
    """Raise SignalException for these signals in the main thread, while the context is open.

    A notification such as SIGUSR1 is only forwarded to the workers. A signal that comes while the
    agent leaves kills the workers at once. In another thread no handler can be installed.

    Args:
        signals: which ones.
        find_seat: returns the node's place in the job; None before it has one.
    """
    if threading.current_thread() is not threading.main_thread():
        log.info("signals_not_handled", why="the agent does not run in the main thread")
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        seat = find_seat()
        if seat is not None and signum in FORWARDED_ONLY:
            seat.forward(signum)
        elif seat is not None and seat.node.is_leaving:
            seat.node.leave_on_signal(signum)
        else:
            one = signal.Signals(signum)
            raise SignalException(f"Process {os.getpid()} got signal: {one}", sigval=one)

    before: dict[signal.Signals, signal._HANDLER] = {}
    try:
        for one in signals:
            before[one] = signal.signal(one, handle)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler if handler is not None else signal.SIG_DFL)
