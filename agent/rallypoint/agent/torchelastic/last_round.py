"""The outcome of the workers of the last round on this node, for reports."""

from __future__ import annotations

from msgspec import Struct

from rallypoint.agent.core.held_round import HeldRound, LocalWorker
from rallypoint.agent.session.translate import worker_message
from rallypoint.v1 import node_pb2


class LastRound(Struct, frozen=True):
    """The last round that ran on this node, and its workers that did not succeed."""

    node_name: str
    host_name: str
    number: int = 0
    """0 when no round ran here."""
    failed: tuple[node_pb2.Worker, ...] = ()
    """By local rank, with their global ranks."""
    stopped: tuple[node_pb2.Worker, ...] = ()
    """Workers that the agent's signal ended or will end; they have not failed."""


def last_round(node_name: str, host_name: str, held: HeldRound | None, now_ms: int) -> LastRound:
    """Return the outcome of the workers of `held`, the last held round; None: there was none."""
    if held is None:
        return LastRound(node_name, host_name)
    failed = [worker for worker in held.workers if has_failed(worker)]
    stopped = [worker for worker in held.workers if has_been_stopped(worker)]
    return LastRound(
        node_name,
        host_name,
        held.number,
        tuple(_with_rank(worker, held, now_ms) for worker in failed),
        tuple(_with_rank(worker, held, now_ms) for worker in stopped),
    )


def has_failed(worker: LocalWorker) -> bool:
    """Return whether a worker failed or could not be started."""
    outcome = worker.outcome
    return outcome is not None and (outcome.is_failure or worker.pid == 0)


def has_been_stopped(worker: LocalWorker) -> bool:
    """Return whether the agent's signal ended a worker, or will end one that lives."""
    if worker.outcome is None:
        return True
    return worker.outcome.signalled_first and not has_failed(worker)


def _with_rank(worker: LocalWorker, held: HeldRound, now_ms: int) -> node_pb2.Worker:
    message = worker_message(worker, now_ms)
    message.rank = held.order.assignment.first_rank + worker.local_rank
    return message
