"""The attempts of one call: what each sends, what follows a failure, and when the caller gives up.

Pure: the clock and the random pauses are arguments. The two forms of the client drive it.

* UNAVAILABLE is always tried again, every other refusal only when the coordinator says when. So is
  the deadline of one attempt, never that of the call, and a call that the server has cancelled.
  Everything else is the caller's.
* Pauses are random below a bound that doubles ("full jitter"), and at least as long as the
  coordinator asks for.
* A further attempt is the same request, with its request id, and says what was known before the
  first one. So the coordinator counts it once, or says that it cannot know.
* The coordinator's wait, at a barrier or for keys, ends before the attempt does. So the answer that
  names the missing arrives.
* With several coordinators the next attempt is with another one. There is a pause only when all
  have failed, or when the coordinator asks for one. An attempt that does not wait for others is
  short, so that a frozen coordinator costs a moment; the attempts after each pause may take longer.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.client.errors import RallypointError, Unavailable
from rallypoint.client.failures import NO_CONNECTION, Failure, to_error
from rallypoint.wire.coordinators import Coordinators
from rallypoint.wire.durations import set_ms

LIMIT_S = 30.0
"""Longest call that does not wait for others: longer than a restart of the coordinator."""
READ_S_MAX = 10.0
"""Longest attempt of a call that changes nothing. The attempts of others last until an answer or
the end of the connection: it is not known before whether they counted."""
SHARED_S_MAX = 2.0
"""Longest first attempt of a call that does not wait for others, if there are other coordinators.
After each pause it doubles, for coordinators that are slow."""
SHARED_S_MIN = 0.2
"""An attempt may also take half of the time that is left, so that there is some for the next; but
at least so long."""
ANSWER_S = 2.0
"""Time for the answer after the end of a wait. The coordinator subtracts at most 1 s."""
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
RETRY_SPREAD = 1.25
"""A pause that the coordinator asks for is longer by up to this factor, so that not all callers
return at once."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class Method(Struct, Generic[Request, Response], frozen=True):
    """One RPC of the contract."""

    path: str
    """Such as "/rallypoint.v1.JobService/GetJob"."""
    request: type[Request]
    response: type[Response]


CHECK = Method("/grpc.health.v1.Health/Check", Empty, Empty)
"""Both messages are read as empty ones: any answer will do."""


class Call(Struct, Generic[Request, Response]):
    """A request on its way."""

    method: Method[Request, Response]
    request: Request
    """Of this call alone: further attempts change it."""
    attempt_s: float = math.inf
    """Longest attempt."""
    waits: bool = False
    """The coordinator waits as long as the request's `timeout` says."""
    mark: Callable[[], None] | None = None
    """Makes the request another attempt."""
    is_exact: bool = False
    """The coordinator knows whether an attempt has counted, even when it starts again meanwhile."""
    learn: Callable[[Response], None] | None = None
    """Notes what an answer says about the coordinator."""


class Draw(Protocol):
    """A random number between two others, such as `random.uniform`."""

    def __call__(self, low: float, high: float, /) -> float:
        """Draw it."""


class Backoff:
    """The pauses between the attempts of one call, or during one outage of a stream."""

    def __init__(
        self,
        targets: Sequence[str],
        limit_s: float,
        now_s: Callable[[], float],
        draw: Draw,
        began_s: float | None = None,
    ) -> None:
        """Begin.

        Args:
            targets: host:port of the coordinators, in the order in which they are tried.
            limit_s: when to give up, from the beginning.
            now_s: a clock that never runs backwards.
            draw: for the jitter.
            began_s: when that was, by the clock; None: now.
        """
        self._coordinators = Coordinators(targets)
        self._limit_s = limit_s
        self._now_s = now_s
        self._draw = draw
        self._ends_s = (now_s() if began_s is None else began_s) + limit_s
        self._pauses = 0

    @property
    def target(self) -> str:
        """Return host:port of the coordinator for the next attempt."""
        return self._coordinators.target

    @property
    def order(self) -> tuple[str, ...]:
        """Return all coordinators, in the order in which they are tried from now on."""
        return self._coordinators.order

    @property
    def attempt_s_max(self) -> float:
        """How long an attempt may take that does not wait for others."""
        if len(self.order) == 1:
            return math.inf
        most_s: float = SHARED_S_MAX * 2 ** min(self._pauses, 16)
        return min(most_s, max(self.left_s() / 2, SHARED_S_MIN))

    def left_s(self) -> float:
        """Return the time until the limit; 0 or less when it is over."""
        return self._ends_s - self._now_s()

    def pause_s(self, failure: Failure, also: Collection[grpc.StatusCode] = ()) -> float:
        """Return how long to wait before the next attempt, which may be with another coordinator.

        Args:
            failure: how the last one ended.
            also: further statuses that may pass.

        Raises:
            RallypointError: when there is none.
        """
        if not _is_transient(failure) and failure.code not in also:
            raise to_error(failure)
        target, is_at_once = self.target, self._coordinators.failed() and failure.retry_s is None
        pause_s = 0.0 if is_at_once else self._draw_pause(failure)
        if pause_s >= self.left_s():
            raise self._give_up(failure, target)
        return pause_s

    def _draw_pause(self, failure: Failure) -> float:
        bound_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(self._pauses, 16))
        self._pauses += 1
        pause_s = self._draw(0.0, bound_s)
        if failure.retry_s is not None:
            pause_s = max(pause_s, self._draw(failure.retry_s, RETRY_SPREAD * failure.retry_s))
        return pause_s

    def _give_up(self, failure: Failure, target: str) -> RallypointError:
        has_no_answer = failure.text.startswith(NO_CONNECTION) and len(self.order) == 1
        if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED or has_no_answer:
            who = f"the coordinator at {target} did not answer"
            if len(self.order) > 1:
                who = f"no coordinator answered at {', '.join(sorted(self.order))}"
            return Unavailable(
                f"{who} within {self._limit_s:.3g} s; check that it runs there and can be reached"
            )
        if failure.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            where = f"coordinator at {target}"
            return Unavailable(f"{where}: {failure.text}; gave up after {self._limit_s:.3g} s")
        return to_error(failure)


class Attempts(Generic[Request, Response]):
    """The attempts of one call."""

    def __init__(
        self,
        call: Call[Request, Response],
        targets: Sequence[str],
        limit_s: float,
        now_s: Callable[[], float],
        draw: Draw,
        began_s: float | None = None,
    ) -> None:
        """Begin; the arguments are those of `Backoff`."""
        self.call = call
        self.backoff = Backoff(targets, limit_s, now_s, draw, began_s)
        self._may_have_counted = False

    def prepare(self) -> float:
        """Make the request ready for the next attempt; return how long that may take, in s."""
        left_s = max(0.0, self.backoff.left_s())
        if self._may_have_counted and self.call.mark is not None:
            self.call.mark()
        if self.call.waits:
            request: Any = self.call.request
            set_ms(request.timeout, max(1, round((left_s - ANSWER_S) * 1000)))
            return left_s
        return min(left_s, self.call.attempt_s, self.backoff.attempt_s_max)

    def fail(self, failure: Failure) -> float:
        """Return how long to wait before the next attempt, in s.

        Raises:
            RallypointError: when there is none.
        """
        self._may_have_counted = self._may_have_counted or failure.may_have_counted
        return self.backoff.pause_s(failure)

    def succeed(self, response: Response) -> Response:
        """Return the answer, once it was noted."""
        if self.call.learn is not None:
            self.call.learn(response)
        return response


def _is_transient(failure: Failure) -> bool:
    if failure.is_final:
        return False
    if failure.retry_s is not None:
        return True
    match failure.code:
        case grpc.StatusCode.UNAVAILABLE:
            return True
        case grpc.StatusCode.CANCELLED:
            return failure.details.own is None  # by a server that ends: the caller has not done it
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return failure.details.own is None  # of the attempt: a wait that ends says for what
        case _:
            return False
