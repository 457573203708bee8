"""Signals to a program that runs an agent in its main thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
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

QUIET_S = 1.0
"""After a signal has raised, the next one must not interrupt the way out; but code of the program
may have caught the exception, so that only a later signal ends the agent."""


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
        elif one in (signal.SIGKILL, signal.SIGSTOP):
            log.warning("signal_not_handled", name=name, why="no program can handle it")
        elif one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN:
            signals.append(one)
    return tuple(dict.fromkeys(signals))


class SignalGate:
    """Raises SignalException for signals in the main thread, unless it would interrupt a clean-up.

    A notification such as SIGUSR1 is only forwarded to the workers. A signal that comes while the
    agent leaves kills the workers at once. In another thread no handler can be installed.
    """

    def __init__(
        self, signals: Sequence[signal.Signals], find_seat: Callable[[], Seat | None]
    ) -> None:
        """Prepare handlers; `handling` installs them.

        Args:
            signals: which ones. Without SIGINT, an interrupt raises KeyboardInterrupt, as before.
            find_seat: returns the node's place in the job; None before it has one.
        """
        self._signals = signals
        self._find_seat = find_seat
        self._is_held = False
        self._first: signal.Signals | None = None
        """The first signal that has come."""
        self._quiet_until_s = 0.0

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Handle the signals while the context is open.

        Raises:
            SignalException, KeyboardInterrupt: one came while they were held.
        """
        if threading.current_thread() is not threading.main_thread():
            log.info("signals_not_handled", why="the agent does not run in the main thread")
            yield
            return
        signals = list(self._signals)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signals.append(signal.SIGINT)
        before: dict[signal.Signals, signal._HANDLER] = {}
        try:
            for one in dict.fromkeys(signals):
                before[one] = signal.signal(one, self._handle)
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler if handler is not None else signal.SIG_DFL)
            if not isinstance(sys.exc_info()[1], SignalException | KeyboardInterrupt):
                self._raise_first()

    def hold(self) -> None:
        """From now on, let no signal interrupt; the first one is raised when `handling` ends."""
        self._is_held = True

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Let no signal interrupt while the context is open.

        Raises:
            SignalException, KeyboardInterrupt: one came, and the context has not failed.
        """
        self._is_held = True
        yield  # after an error they stay held: the agent leaves
        self._is_held = False
        self._raise_first()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        seat = self._find_seat()
        if seat is not None and signum in FORWARDED_ONLY:
            seat.forward(signum)
            return
        if seat is not None and seat.node.is_leaving:
            seat.node.leave_on_signal(signum)
        self._first = self._first or signal.Signals(signum)
        if not self._is_held and time.monotonic() >= self._quiet_until_s:
            self._raise_first()

    def _raise_first(self) -> None:
        one = self._first
        if one is None:
            return
        self._quiet_until_s = time.monotonic() + QUIET_S
        error: BaseException = KeyboardInterrupt()
        if one is not signal.SIGINT or one in self._signals:
            error = SignalException(f"Process {os.getpid()} got signal: {one}", sigval=one)
        seat = self._find_seat()
        if seat is not None:
            seat.node.interruption = error
        raise error
