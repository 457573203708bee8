"""`launch`: a function on several workers of this machine, in one line of a notebook or a terminal.

The agent writes the workers' output to file descriptors. A notebook replaces `sys.stdout` and
`sys.stderr` instead, and shows each line in the cell whose code writes it. A thread belongs to the
cell that has started it, as long as it runs in a copy of that cell's context.
"""

from __future__ import annotations

import contextvars
import linecache
import logging
import re
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rallypoint.base.console import Console, Consoles
from rallypoint.elastic.agents.local_agent import LocalElasticAgent
from rallypoint.elastic.errors import ChildFailedError, ProcessFailure, find_stack
from rallypoint.elastic.logs import DefaultLogsSpecs, Std
from rallypoint.elastic.node.registry import OWN_BACKEND, get_rendezvous_handler
from rallypoint.elastic.rendezvous import RendezvousParameters
from rallypoint.elastic.values import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    check_start_method,
    name_function,
)

if TYPE_CHECKING:
    from rallypoint.elastic.node.coordinated import CoordinatedRendezvous
    from rallypoint.elastic.node.local_seat import LocalSeat

FLUSH_S_MAX = 5.0
"""How long the end of a launch waits for a slow stream."""
SHUTDOWN_TIMEOUT_S = 5
"""Between SIGTERM and SIGKILL: a person waits for an interrupted cell."""
PREFIX = "[rank ${rank}] "
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in ')
_T = TypeVar("_T")


def launch(
    fn: Callable[..., _T],
    *args: Any,
    nproc: int = 1,
    max_restarts: int = 0,
    start_method: str = "spawn",
) -> list[_T]:
    """Call a function in several workers of this machine, and return what each call returned.

        losses = launch(train, 0.1, nproc=4)

    The workers find the variables of torchrun. Their output and the progress of the launch appear
    while they run. An interrupt of the cell or of the program stops them, and a second one
    kills them. Nothing outlives the
    call, and a coordinator is built in.

    Args:
        fn: the function. With spawn and forkserver it is pickled; one that is defined in a notebook
            needs cloudpickle.
        args: its arguments.
        nproc: number of workers, at least 1.
        max_restarts: how often all workers start again after a failure.
        start_method: spawn, fork or forkserver.

    Returns:
        What the workers returned, by rank: `nproc` values.

    Raises:
        WorkerError: a worker has failed, and no restart is left.
        ValueError: an argument is out of its range.
        TypeError: `fn` cannot be called.
        KeyboardInterrupt: there was an interrupt; the workers have ended.
    """
    if not callable(fn):
        raise TypeError(f"launch needs a function, not {fn!r}")
    if nproc < 1:
        raise ValueError(f"nproc must be at least 1, not {nproc}")
    if max_restarts < 0:
        raise ValueError(f"max_restarts must not be negative: {max_restarts}")
    check_start_method(start_method)
    _quiet_log()
    cell = Cell()
    try:
        with tempfile.TemporaryDirectory(prefix="rallypoint-") as folder:
            return _run(fn, args, nproc, max_restarts, start_method, folder, cell)
    finally:
        cell.close()


def _run(
    fn: Callable[..., _T],
    args: tuple[Any, ...],
    nproc: int,
    max_restarts: int,
    start_method: str,
    folder: str,
    cell: Cell,
) -> list[_T]:
    start_s = time.monotonic()
    parameters = RendezvousParameters(
        backend=OWN_BACKEND, endpoint="", run_id=uuid.uuid4().hex, min_nodes=1, max_nodes=1
    )
    handler = get_rendezvous_handler(parameters)
    spec = WorkerSpec(
        role="default",
        local_world_size=nproc,
        entrypoint=fn,
        args=args,
        rdzv_handler=handler,
        max_restarts=max_restarts,
    )
    agent = CellAgent(spec, start_method, folder, cell)
    try:
        with agent.interrupts():
            result = agent.run()
    except KeyboardInterrupt:
        cell.show("interrupted: all workers have been stopped")
        raise
    finally:
        handler.shutdown()
    if result.failures:
        raise WorkerError(name_function(fn), result.failures)
    cell.show(f"done after {time.monotonic() - start_s:.1f} s")
    return [value for _, value in sorted(result.return_values.items())]


def _quiet_log() -> None:
    """Log warnings only, unless the program has chosen a level: `launch` shows its progress."""
    log = logging.getLogger("rallypoint")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)


class CellAgent(LocalElasticAgent):
    """Shows each start and each failure as one line."""

    def __init__(self, spec: WorkerSpec, start_method: str, log_dir: str, cell: Cell) -> None:
        """Prepare an agent.

        Args:
            spec: the workers.
            start_method: of the function.
            log_dir: keeps the output and the errors of the workers during the launch.
            cell: where lines go.
        """
        super().__init__(
            spec,
            DefaultLogsSpecs(log_dir=log_dir, tee=Std.ALL),
            start_method,
            log_line_prefix_template=PREFIX,
            shutdown_timeout=SHUTDOWN_TIMEOUT_S,
        )
        self.signals_to_handle = ""  # see `interrupts`
        self._cell = cell
        self._shown_round = 0

    @contextmanager
    def interrupts(self) -> Iterator[None]:
        """Let SIGINT raise KeyboardInterrupt, as in any cell; the second one kills the workers.

        A program's own handler stays.
        """
        is_main = threading.current_thread() is threading.main_thread()
        if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        seat = self._seat
        if seat is None or not seat.node.is_leaving:
            raise KeyboardInterrupt
        seat.node.leave_on_signal(signum)

    def _new_seat(self, handler: CoordinatedRendezvous) -> LocalSeat:
        seat = super()._new_seat(handler)
        seat.consoles = self._cell.consoles
        return seat

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        restarts = self._sit().order.header.restart_count
        limit = f", restart {restarts} of {spec.max_restarts}" if spec.max_restarts else ""
        count = spec.local_world_size
        start = "1 worker starts" if count == 1 else f"{count} workers start"
        self._cell.show(f"round {self._sit().number}: {start}{limit}")
        return super()._start_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result = super()._monitor_workers(worker_group)
        number = self._sit().number
        if result.state is WorkerState.FAILED and self._shown_round != number:
            self._shown_round = number
            for rank, failure in sorted(result.failures.items()):
                self._cell.show(f"round {number}: rank {rank} failed: {find_summary(failure)}")
        return result


class Cell:
    """The standard streams of one launch. Every write is whole lines."""

    def __init__(self) -> None:
        """Take the streams of the moment, and the context of the calling thread."""
        self._lock = threading.Lock()
        self.out = _CellConsole(1, sys.stdout, self._lock)
        self.err = _CellConsole(2, sys.stderr, self._lock)

    @property
    def consoles(self) -> Consoles:
        """The streams, as the agent takes them."""
        return Consoles(self.out, self.err)

    def show(self, text: str) -> None:
        """Write a line about the launch."""
        self.out.put(f"{text}\n")

    def close(self) -> None:
        """Write the rest, and end the threads."""
        for console in (self.out, self.err):
            console.flush(FLUSH_S_MAX)
            console.release()


class _CellConsole(Console):
    """Writes to a text stream of Python."""

    def __init__(self, fd: int, stream: TextIO, lock: threading.Lock) -> None:
        self._stream = stream
        self._lock = lock
        self._context = contextvars.copy_context()
        super().__init__(fd)

    def put(self, text: str) -> None:
        """Write at once, from the calling thread."""
        with self._lock:
            self._stream.write(text)
            self._stream.flush()

    def _serve(self) -> None:
        self._context.copy().run(super()._serve)  # a copy: the thread before may still leave it

    def _stride_bytes(self) -> int:
        return sys.maxsize  # whole lines, so that no character is cut

    def _write(self, piece: memoryview) -> int:
        self.put(bytes(piece).decode(errors="replace"))
        return len(piece)


class WorkerError(ChildFailedError):
    """A worker has failed. The text is the error of the first one, with its traceback.

    Attributes:
        rank: of the worker that failed first.
        failure: of that worker.
        failures: of all workers that failed, by rank.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        """Take at least one failure; see `ChildFailedError`."""
        super().__init__(name, failures)
        self.rank, self.failure = self.get_first_failure()

    def __str__(self) -> str:
        """Return the first error, its traceback, and which other ranks failed."""
        stack = find_traceback(self.failure)
        others = sorted(self.failures.keys() - {self.rank})
        parts = [f"rank {self.rank} of {self.name} failed: {find_summary(self.failure)}"]
        if stack:
            parts.append(f"traceback of rank {self.rank}:\n\n{stack.rstrip()}")
        if others:
            parts.append(f"other ranks that failed: {', '.join(map(str, others))}")
        return "\n\n".join(parts)


def find_summary(failure: ProcessFailure) -> str:
    """Return a failure as one line, such as "ValueError: bad (exit code 1)"."""
    message = failure.message
    text = message if isinstance(message, str) else str(message.get("message", ""))
    first = text.splitlines()[0] if text else "no error was recorded"
    return f"{first} (exit code {failure.exitcode})" if failure.exitcode >= 0 else first


def find_traceback(failure: ProcessFailure) -> str:
    """Return the traceback that the worker recorded; empty: none."""
    return _add_sources(find_stack(failure.message))


def _add_sources(stack: str) -> str:
    """Add the lines of code that a worker cannot find: only the notebook has those of its cells."""
    lines = stack.splitlines()
    whole: list[str] = []
    for line, below in zip(lines, (*lines[1:], ""), strict=False):  # of nothing: nothing
        whole.append(line)
        frame = _FRAME.match(line)
        if frame and not below.startswith("    "):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            whole += [f"    {source}"] if source else []
    return "\n".join(whole)
