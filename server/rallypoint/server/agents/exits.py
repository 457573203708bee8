"""How workers failed or ended."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from rallypoint.server.contract.calls import require
from rallypoint.server.contract.mappers import EXIT
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.v1 import node_pb2

WORDS_MAX = 64
"""Failed workers in one message whose words are kept: several times as many as a large node has.
To read the words of one takes 0.1 ms of the turn in which all agents wait."""


class AllowedExits(Enum):
    """Which exits a message may carry."""

    ENDED = "ended"  # all have ended
    RUNNING = "running"  # all have recorded an error and still run
    ANY = "any"


def to_exits(
    workers: Iterable[node_pb2.Worker], path: str, local_world_size: int, allowed: AllowedExits
) -> tuple[WorkerExit, ...]:
    """Return how workers failed or ended, each at most once.

    Beyond WORDS_MAX failures, only those that failed first keep what their workers wrote.

    Args:
        workers: workers with their exits set.
        path: path of their field.
        local_world_size: number of workers of the node, which bounds local ranks.
        allowed: which exits the message may carry.
    """
    exits: dict[int, WorkerExit] = {}
    for index, worker in enumerate(workers):
        rank, at = worker.local_rank, f"{path}[{index}]"
        fits = rank < local_world_size
        require(fits, f"{at}.local_rank", f"{rank} is not below {local_world_size}")
        require(rank not in exits, f"{at}.local_rank", f"{rank} is listed twice")
        exits[rank] = _exit(worker, f"{at}.exit", allowed)
    return _keep_first_words(tuple(exits.values()))


def _keep_first_words(exits: tuple[WorkerExit, ...]) -> tuple[WorkerExit, ...]:
    """Return the exits; of their failures, the first WORDS_MAX keep what the worker wrote."""
    failures = [exit for exit in exits if exit.is_failure]
    failures.sort(key=lambda exit: exit.ago_ms + exit.error_age_ms, reverse=True)
    late = {exit.local_rank for exit in failures[WORDS_MAX:]}
    return tuple(exit.without_words() if exit.local_rank in late else exit for exit in exits)


def _exit(worker: node_pb2.Worker, path: str, allowed: AllowedExits) -> WorkerExit:
    exit = worker.exit
    has_code, has_signal = exit.HasField("exit_code"), exit.HasField("signal")
    if allowed is AllowedExits.ENDED or (
        allowed is AllowedExits.ANY and not exit.HasField("error")
    ):
        require(has_code != has_signal, path, "needs exactly one of exit_code and signal")
    elif allowed is AllowedExits.ANY:
        require(not (has_code and has_signal), path, "has both exit_code and signal")
    else:
        fits = exit.HasField("error") and not has_code and not has_signal
        require(fits, path, "needs an error, and neither exit_code nor signal")
    return EXIT.to_struct(exit, local_rank=worker.local_rank, pid=worker.pid)
