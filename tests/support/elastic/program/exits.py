"""Workers that end neither by a return nor by an exception, and launchers that are ended."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup, case
from support.elastic.program.failures import LONG_S, raises
from support.elastic.program.outcome import attempt, clean, launch
from support.elastic.program.values import rank

HANG_S = 45.0
"""A launcher that has not noticed the end of its worker by then never will."""


class Hanging(BaseException):
    """The launcher waits for ever."""


def within_limit(setup: Setup, call: Callable[[], Any]) -> Any:
    """Return what comes of a call, also if it hangs."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        raise Hanging(f"more than {HANG_S:g} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def exits(code: Any) -> None:
    sys.exit(code)


def exits_at_once(code: int) -> None:
    os._exit(code)


def ends_by_signal(signum: int) -> None:
    os.kill(os.getpid(), signum)
    time.sleep(LONG_S)


def waits_for_a_signal(folder: str) -> None:
    """Say that it runs, then which signal stops it."""

    def note(signum: int, frame: FrameType | None) -> None:
        (Path(folder) / f"stopped-{rank()}").write_text(signal.Signals(signum).name)
        sys.exit(0)

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, note)
    (Path(folder) / f"runs-{rank()}").touch()
    time.sleep(LONG_S)


def ignores_signals(folder: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (Path(folder) / f"runs-{rank()}").touch()
    time.sleep(LONG_S)


def leaves_a_thread(seconds: float) -> str:
    """Return while a thread still runs."""
    threading.Thread(target=time.sleep, args=(seconds,)).start()
    return "returned"


def signals_when_all_run(folder: Path, workers: int, signum: signal.Signals) -> None:
    """Signal this process as soon as its workers run, from a thread."""

    def wait() -> None:
        while len(list(folder.glob("runs-*"))) < workers:
            time.sleep(0.01)
        time.sleep(0.3)  # the launcher may still note that they have started
        os.kill(os.getpid(), signum)

    threading.Thread(target=wait, daemon=True).start()


def interrupted(setup: Setup, function: Any, signum: signal.Signals, **fields: Any) -> Any:
    """Launch two workers, and signal the launcher when they run."""
    signals_when_all_run(setup.folder, 2, signum)
    found = launch(setup, function, str(setup.folder), **fields)
    return [found, sorted(path.read_text() for path in setup.folder.glob("stopped-*"))]


@case()
def exit_with_0(setup: Setup) -> Any:
    """`sys.exit(0)` is a success without a value."""
    return launch(setup, exits, 0)


@case()
def exit_without_a_code(setup: Setup) -> Any:
    """`sys.exit()` ends a program with 0."""
    return within_limit(setup, lambda: launch(setup, exits, None, nproc_per_node=1))


@case()
def exit_with_3(setup: Setup) -> Any:
    """The code is reported."""
    return launch(setup, exits, 3, nproc_per_node=1)


@case()
def exit_with_a_text(setup: Setup) -> Any:
    """`sys.exit("text")` ends a program with 1."""
    return launch(setup, exits, "no data", nproc_per_node=1)


@case()
def exit_at_once(setup: Setup) -> Any:
    """`os._exit(4)` leaves no traceback."""
    return launch(setup, exits_at_once, 4, nproc_per_node=1)


@case()
def exit_at_once_with_0(setup: Setup) -> Any:
    """`os._exit(0)` returns no value: that is no success."""
    return within_limit(setup, lambda: launch(setup, exits_at_once, 0, nproc_per_node=1))


@case()
def interrupt_by_the_function(setup: Setup) -> Any:
    """`KeyboardInterrupt` ends a worker without a value."""
    return within_limit(setup, lambda: launch(setup, raises, "interrupt", nproc_per_node=1))


@case()
def killed(setup: Setup) -> Any:
    """SIGKILL."""
    return launch(setup, ends_by_signal, int(signal.SIGKILL), nproc_per_node=1)


@case()
def launcher_terminated(setup: Setup) -> Any:
    """SIGTERM to the launcher: the workers get it, and the caller a SignalException."""
    return interrupted(setup, waits_for_a_signal, signal.SIGTERM)


@case()
def signal_of_the_users_choice(setup: Setup) -> Any:
    """`signals_to_handle` names the signals that end a launcher."""
    fields = {"signals_to_handle": "SIGUSR1"}
    return interrupted(setup, waits_for_a_signal, signal.SIGUSR1, **fields)


@case()
def workers_that_ignore_the_signal(setup: Setup) -> Any:
    """They are killed after the shutdown timeout."""
    started = time.monotonic()
    found = interrupted(setup, ignores_signals, signal.SIGTERM, shutdown_timeout=1)
    return [found, time.monotonic() - started < LONG_S / 2]


@case()
def thread_that_outlives_the_function(setup: Setup) -> Any:
    """A worker ends when its threads have ended."""
    return launch(setup, leaves_a_thread, 0.5)


@case()
def negative_shutdown_timeout(setup: Setup) -> Any:
    """It is refused before anything starts."""
    return attempt(setup, lambda: setup.config(shutdown_timeout=-1))


@case()
def text_of_a_signal_exception(setup: Setup) -> Any:
    """It is made of a text and a signal."""
    error = api.SignalException("got one", signal.SIGHUP)
    return [clean(setup, str(error)), error.sigval.name, isinstance(error, Exception)]
