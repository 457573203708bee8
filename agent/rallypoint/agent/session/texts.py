"""What workers printed and recorded, cut so that a Hello fits into a message.

A Hello repeats the exits of all workers of the held round, and a message has at most 4 MiB. The
first failures explain the others, so these keep their texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from rallypoint.v1 import node_pb2
from rallypoint.wire.durations import to_ms

WHOLE_WORKERS_MAX = 16
"""Workers of a Hello with whole texts: as many as a verdict names."""
TEXT_BYTES_MAX = 1_024
"""Text of any other worker: enough for the last lines of an error."""
TEXTS_BYTES_MAX = 524_288
"""Text of all these workers together; their paths may have as much."""


def limit_texts(workers: Sequence[node_pb2.Worker]) -> None:
    """Cut the texts of workers, but for those of the first failures."""
    ended = [worker.exit for worker in workers if worker.HasField("exit")]
    others = sorted(ended, key=_rank)[WHOLE_WORKERS_MAX:]
    if not others:
        return
    bytes_max = min(TEXT_BYTES_MAX, TEXTS_BYTES_MAX // len(others))
    for exit in others:
        _cut(exit, bytes_max)


def _rank(exit: node_pb2.WorkerExit) -> tuple[bool, int]:
    """Return a key that puts failures before other exits, and the earliest first."""
    is_success = exit.HasField("exit_code") and exit.exit_code == 0
    return is_success or exit.agent_signalled_first, -to_ms(exit.age)


def _cut(exit: node_pb2.WorkerExit, bytes_max: int) -> None:
    """Keep the beginning of the error, or the end of standard error if there is none."""
    if exit.HasField("error"):
        exit.error.message = _decode(exit.error.message.encode()[:bytes_max])
        exit.error.traceback = ""
        exit.stderr_tail = ""
    else:
        exit.stderr_tail = _decode(exit.stderr_tail.encode()[-bytes_max:])
    if len(exit.error_file.encode()) + len(exit.stderr_file.encode()) > bytes_max:
        exit.error_file = exit.stderr_file = ""


def _decode(data: bytes) -> str:
    return data.decode(errors="ignore")
