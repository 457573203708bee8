"""What became of the workers of the last round that ran here: for reports, after it has gone."""

from __future__ import annotations

from dataclasses import dataclass

from rallypoint.agent.core.model import Held, LocalWorker
from rallypoint.agent.translate import worker_message
from rallypoint.v1 import node_pb2


@dataclass(frozen=True, slots=True)
class LastRound:
    """The last round that ran on this node."""

    node_name: str
    host_name: str
    number: int = 0
    """0 when none ever ran here."""
    failed: tuple[node_pb2.Worker, ...] = ()
    """By local rank, with their global ranks."""
    stopped: tuple[node_pb2.Worker, ...] = ()
    """Those that the agent's own signal ended, or is about to: they have not failed."""


def last_round(node_name: str, host_name: str, held: Held | None, now_ms: int) -> LastRound:
    """Return what became of the workers of `held`, the last round that was held; None: of none."""
    if held is None:
        return LastRound(node_name, host_name)
    failed = [worker for worker in held.workers if has_failed(worker)]
    stopped = [worker for worker in held.workers if has_been_stopped(worker)]
    return LastRound(
        node_name,
        host_name,
        held.order.number,
        tuple(_with_rank(worker, held, now_ms) for worker in failed),
        tuple(_with_rank(worker, held, now_ms) for worker in stopped),
    )


def has_failed(worker: LocalWorker) -> bool:
    """Return whether a worker failed, or could not even be started."""
    return worker.exit is not None and (worker.exit.is_failure or worker.pid == 0)


def has_been_stopped(worker: LocalWorker) -> bool:
    """Return whether a worker ended by the agent's signal; one without an end soon will have."""
    if worker.exit is None:
        return True
    return worker.exit.signalled_first and not has_failed(worker)


def _with_rank(worker: LocalWorker, held: Held, now_ms: int) -> node_pb2.Worker:
    message = worker_message(worker, now_ms)
    message.rank = held.order.first_rank + worker.local_rank
    return message
