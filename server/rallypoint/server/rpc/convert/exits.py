"""Exits of workers."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.base.limits import (
    MESSAGE_CHARS_MAX,
    STDERR_CHARS_MAX,
    TEXT_CHARS_MAX,
    TRACEBACK_CHARS_MAX,
    UNIX_MS_MAX,
)
from rallypoint.server.core.model.worker import ErrorRecord, WorkerExit
from rallypoint.server.rpc.convert.checks import limit_text, require, to_limited_ms
from rallypoint.v1 import node_pb2
from rallypoint.wire.durations import to_unix_ms


def to_exits(
    workers: Iterable[node_pb2.Worker], path: str, local_world_size: int
) -> tuple[WorkerExit, ...]:
    """Return how workers ended, each at most once.

    Args:
        workers: workers with their exits set.
        path: path of their field.
        local_world_size: number of workers of the node, which bounds local ranks.
    """
    exits: dict[int, WorkerExit] = {}
    for worker in workers:
        require(worker.HasField("local_rank"), f"{path}.local_rank", "is missing")
        rank = worker.local_rank
        fits = rank < local_world_size
        require(fits, f"{path}.local_rank", f"{rank} is not below {local_world_size}")
        require(rank not in exits, f"{path}.local_rank", f"{rank} is listed twice")
        exits[rank] = _exit(worker, f"{path}.exit")
    return tuple(exits.values())


def _exit(worker: node_pb2.Worker, path: str) -> WorkerExit:
    exit = worker.exit
    has_code, has_signal = exit.HasField("exit_code"), exit.HasField("signal")
    require(has_code != has_signal, path, "needs exactly one of exit_code and signal")
    outlived_ms = None
    if exit.HasField("outlived_signal_for"):
        outlived_ms = to_limited_ms(exit.outlived_signal_for, f"{path}.outlived_signal_for")
    return WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=exit.exit_code if has_code else None,
        signal=exit.signal if has_signal else None,
        agent_signalled_first=exit.agent_signalled_first,
        ago_ms=to_limited_ms(exit.age, f"{path}.age"),
        ran_ms=to_limited_ms(exit.run_time, f"{path}.run_time"),
        error=_error(exit.error, f"{path}.error") if exit.HasField("error") else None,
        stderr_tail=exit.stderr_tail[-STDERR_CHARS_MAX:],
        signalled_before_ms=outlived_ms,
        oom_killed=exit.oom_killed,
        failed_ms=_unix_ms(exit.failed_at) if exit.HasField("failed_at") else None,
        error_file=limit_text(exit.error_file, TEXT_CHARS_MAX),
    )


def _error(error: node_pb2.ErrorRecord, path: str) -> ErrorRecord:
    age_ms = None
    if error.HasField("age_at_exit"):
        age_ms = to_limited_ms(error.age_at_exit, f"{path}.age_at_exit")
    return ErrorRecord(
        message=limit_text(error.message, MESSAGE_CHARS_MAX),
        traceback=error.traceback[-TRACEBACK_CHARS_MAX:],
        before_exit_ms=age_ms,
    )


def _unix_ms(time: Timestamp) -> int | None:
    """Return a time for people to read; an impossible one is dropped, not refused."""
    unix_ms = to_unix_ms(time)
    return unix_ms if 0 <= unix_ms <= UNIX_MS_MAX else None
