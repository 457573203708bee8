"""Simulated operators, who change jobs and nodes at random moments.

The network loses requests and answers. A request without an answer is sent again, with the same id;
so is one that was answered, some time later, as a proxy might do. A request without an id is sent
once.

Everything here is drawn from a separate generator, so the other choices of a seed stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.server.contract.errors import refusal_status
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.refusals import Refusal
from rallypoint.server.core.model.ids import JobId, NodeName
from sim.operations.plan import CONVERT, Method, draw_request
from sim.rules.rules import Violation

if TYPE_CHECKING:
    from sim.world.server import Server
    from sim.world.world import World

ACTIVE_PERCENT = 35
"""Of the seeds."""
EVERY_MS = (600, 1_500, 4_000)
"""Mean time between two requests."""
REQUESTS_MAX = 40
"""Of one seed. A job remembers more than that."""
ATTEMPTS_MAX = 8
ANSWER_MS = 1_500
"""How long an operator waits for an answer."""
RETRY_MS_MAX = 2_000
LATENCY_MS_MAX = 60
LOST_PERCENT = 15
"""Of the requests, and of the answers."""
NO_ID_PERCENT = 10
AGAIN_PERCENT = 40
"""Of the answered requests: an attempt arrives once more."""
AGAIN_MS_MAX = 15_000
UNAVAILABLE: int = grpc.StatusCode.UNAVAILABLE.value[0]


@dataclass(slots=True, eq=False)
class Operation:
    """A request of an operator, and how often it was sent."""

    method: Method
    message: Any
    attempts: int = 0
    is_answered: bool = False


class Operators:
    """All operators of a seed, and the network between them and the coordinator."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = Random(f"{world.seed} operators")
        is_active = self.rng.random() * 100 < ACTIVE_PERCENT
        self.is_active = is_active if world.options.operators < 0 else world.options.operators > 0
        self._every_ms = self.rng.choice(EVERY_MS)
        self._requests = 0
        self._waiting: dict[int, tuple[Operation, inputs.Request, Server]] = {}
        """Attempts that no turn has stepped yet, by the identity of their inputs."""
        if self.is_active:
            self._schedule()

    def _schedule(self) -> None:
        delay_ms = int(self.rng.expovariate(1 / self._every_ms)) + 1
        self.world.clock.after(delay_ms, self._begin)

    def _begin(self) -> None:
        if self.world.is_calm or self._requests >= REQUESTS_MAX:
            return
        self._requests += 1
        method, message = draw_request(self.rng, self.world)
        if not self._happens(NO_ID_PERCENT):
            message.request_id = f"o{self._requests}"
        self._send(Operation(method, message))
        self._schedule()

    def _happens(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def _send(self, operation: Operation) -> None:
        operation.attempts += 1
        if not self._happens(LOST_PERCENT):
            delay_ms = self.rng.randint(0, LATENCY_MS_MAX)
            self.world.clock.after(delay_ms, partial(self._deliver, operation))
        self.world.clock.after(ANSWER_MS, partial(self._give_up, operation, operation.attempts))

    def _give_up(self, operation: Operation, attempt: int) -> None:
        """Send a request again whose answer did not come."""
        if not operation.is_answered and operation.attempts == attempt:
            self._send_again(operation)

    def _send_again(self, operation: Operation) -> None:
        if self.world.is_calm or operation.attempts >= ATTEMPTS_MAX:
            return
        if operation.message.request_id:
            delay_ms = self.rng.randint(0, RETRY_MS_MAX)
            self.world.clock.after(delay_ms, partial(self._send, operation))

    def _deliver(self, operation: Operation) -> None:
        world = self.world
        server = world.server_of(JobId(operation.message.job_id))
        if world.is_calm:  # faults have stopped, and operators have, too
            return
        if server is None or server.stalled_until_ms > world.clock.now_ms:
            self._answer(operation, Status(code=UNAVAILABLE))
            return
        if server.writes.hold_up(partial(self._deliver, operation)):
            return
        message = type(operation.message).FromString(operation.message.SerializeToString())
        try:
            request = CONVERT[operation.method](message)
        except InvalidMessage as invalid:
            raise Violation("Contract", f"{operation.method.value}: {invalid}") from invalid
        job_id = JobId(message.job_id)
        world.note("operation", operation.method.value, job_id, message.request_id)
        for host in world.hosts:
            if host.plan.job_id == job_id:
                world.disturb_host(host)
        if isinstance(request, inputs.DrainNode):
            world.drained.add((job_id, NodeName(message.node_name)))
        elif isinstance(request, inputs.Cordon):
            world.note_kept_out(job_id, NodeName(message.node_name))
        self._waiting[id(request)] = operation, request, server
        server.request(request)

    def stepped(self, input: inputs.Input, refusal: Refusal | None) -> None:
        """Answer a request that was stepped, once its turn is over."""
        found = self._waiting.pop(id(input), None)
        if found is None:
            return
        operation, _, server = found
        status = Status() if refusal is None else refusal_status(refusal)
        self.world.clock.after(0, partial(self._answer_of, server, operation, status))

    def _answer_of(self, server: Server, operation: Operation, status: Status) -> None:
        if not server.is_dead:
            self._answer(operation, status)

    def _answer(self, operation: Operation, status: Status) -> None:
        if not self._happens(LOST_PERCENT):
            delay_ms = self.rng.randint(0, LATENCY_MS_MAX)
            self.world.clock.after(delay_ms, partial(self._take, operation, status))

    def _take(self, operation: Operation, status: Status) -> None:
        if operation.is_answered:
            return
        if status.code == UNAVAILABLE:
            self._send_again(operation)
            return
        operation.is_answered = True
        self.world.coverage.counts["answered", operation.method.value] += 1
        if operation.message.request_id and self._happens(AGAIN_PERCENT):
            delay_ms = self.rng.randint(0, AGAIN_MS_MAX)
            self.world.clock.after(delay_ms, partial(self._deliver, operation))
