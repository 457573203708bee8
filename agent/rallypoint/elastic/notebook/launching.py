"""`launch`: a function on several workers of this machine, in one line."""

from __future__ import annotations

import logging
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

from rallypoint.elastic.launcher.launch import START_METHODS
from rallypoint.elastic.notebook.agent import CellAgent
from rallypoint.elastic.notebook.cell import Cell
from rallypoint.elastic.notebook.worker_error import WorkerError
from rallypoint.elastic.rendezvous import RendezvousParameters, get_rendezvous_handler
from rallypoint.elastic.rendezvous.registry import OWN_BACKEND
from rallypoint.elastic.values.worker_spec import WorkerSpec, name_function

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
    if start_method not in START_METHODS:
        known = ", ".join(START_METHODS)
        raise ValueError(f"start_method {start_method!r} is unknown; known: {known}")
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
