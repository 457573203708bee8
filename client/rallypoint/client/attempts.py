"""The attempts of one call: what each sends, what follows a failure, and when the caller gives up.

Pure: the clock and the random pauses are arguments. The two forms of the client drive it.

* UNAVAILABLE is always tried again, every other refusal only when the coordinator says when. So is
  the deadline of one attempt, never that of the call. Everything else is the caller's.
* Pauses are random below a bound that doubles ("full jitter"), and at least as long as the
  coordinator asks for.
* A further attempt is the same request, with its request id, and says what was known before the
  first one. So the coordinator counts it once, or says that it cannot know.
* The coordinator's wait, at a barrier or for keys, ends before the attempt does. So the answer that
  names the missing arrives.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message
from msgspec import Struct

from rallypoint.client.errors import RallypointError, Unavailable
from rallypoint.client.failures import Failure, to_error
from rallypoint.wire.durations import set_ms

LIMIT_S = 30.0
"""Longest call that does not wait for others: longer than a restart of the coordinator."""
READ_S_MAX = 10.0
"""Longest attempt of a call that changes nothing. The attempts of others last until an answer or
the end of the connection: it is not known before whether they counted."""
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
    learn: Callable[[Response], None] | None = None
    """Notes what an answer says about the coordinator."""


class Draw(Protocol):
    """A random number between two others, such as `random.uniform`."""

    def __call__(self, low: float, high: float, /) -> float:
        """Draw it."""


class Backoff:
    """The pauses between the attempts of one call, or during one outage of a stream."""

    def __init__(self, target: str, limit_s: float, now_s: Callable[[], float], draw: Draw) -> None:
        """Begin.

        Args:
            target: host:port of the coordinator, for the error.
            limit_s: when to give up, from now.
            now_s: a clock that never runs backwards.
            draw: for the jitter.
        """
        self._target = target
        self._limit_s = limit_s
        self._now_s = now_s
        self._draw = draw
        self._ends_s = now_s() + limit_s
        self._failures = 0

    def left_s(self) -> float:
        """Return the time until the limit; 0 or less when it is over."""
        return self._ends_s - self._now_s()

    def pause_s(self, failure: Failure, also: Collection[grpc.StatusCode] = ()) -> float:
        """Return how long to wait before the next attempt.

        Args:
            failure: how the last one ended.
            also: further statuses that may pass.

        Raises:
            RallypointError: when there is none.
        """
        if not _is_transient(failure) and failure.code not in also:
            raise to_error(failure)
        bound_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(self._failures, 16))
        self._failures += 1
        pause_s = self._draw(0.0, bound_s)
        if failure.retry_s is not None:
            pause_s = max(pause_s, self._draw(failure.retry_s, RETRY_SPREAD * failure.retry_s))
        if pause_s >= self.left_s():
            raise self._give_up(failure)
        return pause_s

    def _give_up(self, failure: Failure) -> RallypointError:
        if failure.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(
                f"the coordinator at {self._target} did not answer within {self._limit_s:.3g} s; "
                "check that it runs there and can be reached"
            )
        if failure.code is grpc.StatusCode.UNAVAILABLE:
            where = f"coordinator at {self._target}"
            return Unavailable(f"{where}: {failure.text}; gave up after {self._limit_s:.3g} s")
        return to_error(failure)


class Attempts(Generic[Request, Response]):
    """The attempts of one call."""

    def __init__(
        self,
        call: Call[Request, Response],
        target: str,
        limit_s: float,
        now_s: Callable[[], float],
        draw: Draw,
    ) -> None:
        """Begin; the arguments are those of `Backoff`."""
        self.call = call
        self._backoff = Backoff(target, limit_s, now_s, draw)
        self._may_have_counted = False

    def prepare(self) -> float:
        """Make the request ready for the next attempt; return how long that may take, in s."""
        left_s = max(0.0, self._backoff.left_s())
        if self._may_have_counted and self.call.mark is not None:
            self.call.mark()
        if self.call.waits:
            request: Any = self.call.request
            set_ms(request.timeout, max(1, round((left_s - ANSWER_S) * 1000)))
        return min(left_s, self.call.attempt_s)

    def fail(self, failure: Failure) -> float:
        """Return how long to wait before the next attempt, in s.

        Raises:
            RallypointError: when there is none.
        """
        self._may_have_counted = self._may_have_counted or failure.may_have_counted
        return self._backoff.pause_s(failure)

    def succeed(self, response: Response) -> Response:
        """Return the answer, once it was noted."""
        if self.call.learn is not None:
            self.call.learn(response)
        return response


def _is_transient(failure: Failure) -> bool:
    if failure.retry_s is not None:
        return True
    match failure.code:
        case grpc.StatusCode.UNAVAILABLE:
            return True
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return failure.details.own is None  # of the attempt: a wait that ends says for what
        case _:
            return False
