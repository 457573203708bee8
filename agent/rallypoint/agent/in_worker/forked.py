"""Runs a function in a process that the helper has forked, and ends the process.

The process is a copy of the helper's, where another program would begin afresh. So what exec and a
new interpreter reset is reset here: standard streams, handlers of signals, and what the interpreter
does at its end. `multiprocessing` does its own part, so that it can be used in the function.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from multiprocessing.context import Process
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from rallypoint.agent.in_worker import function
from rallypoint.agent.in_worker.preload import rallypoint_armed

if TYPE_CHECKING:
    from collections.abc import Callable

    from rallypoint.agent.in_worker.function import Call

ARMED = "RALLYPOINT_ARMED"
_replaced: list[Any] = []
"""Streams of the process that was copied. Nothing may flush what they hold a second time."""


def run_payload(arguments: list[str]) -> NoReturn:
    """Run the function of a payload.

    Args:
        arguments: the payload, the path for the return value, and the local rank.
    """
    payload, result, local_rank = arguments
    _run(lambda: function.load(payload), result, local_rank)


class InheritedCall:
    """Runs a function of the process that was copied; arguments as for `run_payload`."""

    def __init__(self, entrypoint: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Take the function and its arguments."""
        self._call: Call = entrypoint, args, False

    def __call__(self, arguments: list[str]) -> NoReturn:
        """Run it in this forked process."""
        _, result, local_rank = arguments
        _run(lambda: self._call, result, local_rank)


class _Worker(Process):
    """The process as `multiprocessing` sees it."""

    def __init__(self, get_call: Callable[[], Call], result: str, local_rank: str) -> None:
        super().__init__(daemon=False)
        self._work: Callable[[], None] = lambda: function.run(get_call, result, local_rank)
        self.is_interrupted = False

    def run(self) -> None:
        """Call the function; report what it raises, and make it the exit code."""
        _replace("stdin", open(0, closefd=False))
        try:
            self._work()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - the root of the worker
            function.report(error)
            self.is_interrupted = isinstance(error, KeyboardInterrupt)
            sys.exit(1)


def _run(get_call: Callable[[], Call], result: str, local_rank: str) -> NoReturn:
    exit_code = 1
    try:
        _reset_signals()
        _open_output()
        gc.freeze()  # garbage of the copied process may own threads that do not exist here
        gc.enable()
        atexit._clear()  # what the copied process does at its end is not for its copies
        prefix = os.environ.pop(ARMED, "")
        if prefix:
            rallypoint_armed.arm(prefix)
        worker: Any = _Worker(get_call, result, local_rank)
        exit_code = worker._bootstrap()
        function.end(exit_code, is_interrupted=worker.is_interrupted)
    finally:
        os._exit(exit_code & 0xFF)


def _reset_signals() -> None:
    """Handle signals as a new interpreter does; all have their default action until now."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)


def _open_output() -> None:
    """Open the standard output and error; each line is written when it is complete."""
    _replaced.append(sys.stdin)
    sys.stdin = None  # `multiprocessing` would close it, and maybe descriptor 0 with it
    _replace("stdout", _open_text(1, "strict"))
    _replace("stderr", _open_text(2, "backslashreplace"))


def _replace(name: str, stream: TextIO) -> None:
    for attribute in (name, f"__{name}__"):
        _replaced.append(getattr(sys, attribute))
        setattr(sys, attribute, stream)


def _open_text(fd: int, errors: str) -> TextIO:
    return open(fd, "w", buffering=1, errors=errors, closefd=False)
