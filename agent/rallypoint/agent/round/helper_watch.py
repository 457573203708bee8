"""Owns the helper process of the moment: watches that it answers, and ends one that does not.

The helper alone can stop the workers and end what they started. A helper that stands still, because
it was stopped or waits for the kernel, would keep a node from its next round, and would keep
workers alive beyond the fence. So the agent asks it for a sign of life once a second, and kills it

  * just after the fence, unless it confirms that it carries out the fence;
  * when its workers have to end at last, or it has none, and it has been silent for `SILENT_S_MAX`;
  * otherwise, when it has been silent for `FROZEN_S_MAX`.

The workers die with the helper: the kernel sends SIGKILL to its children, and the agent ends the
rest (helper/host.py). Then another helper starts.

The helper kills at the fence, too, if the agent hangs: each is there when the other one fails.

A loaded machine must not look like a frozen helper. Silence is counted in seconds in which the
agent itself was on time, so what stops both does not count. A healthy helper answers within 0.1 s
while 64 processes compute on two processors (measured). It is busy for up to two seconds at its
start, while it ends what a dead agent has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rallypoint.agent.core import inputs
from rallypoint.agent.helper.events import HostEvent
from rallypoint.agent.helper.host import HelperIrreplaceable, WorkerHost, WorkerHostError
from rallypoint.base.log import get_logger

log = get_logger()

TICK_S = 1.0
"""Pause between two looks, each of which asks for a sign of life."""
LATE_S_MAX = 0.5
"""A look that comes later than this after its time says nothing about the helper."""
NOTICED_S = 3
"""Silence that is logged, and that the coordinator learns of during a stop."""
SILENT_S_MAX = 3
"""Silence that a sweep waits for: the workers have to die anyway. The coordinator waits for 5 s
beyond the shutdown timeout. A helper without workers is replaced as soon: it costs nothing."""
FROZEN_S_MAX = 60
"""Silence that costs running workers, or the agent if its helper cannot be replaced. A shared file
system that hangs for half a minute may stop a healthy helper: it reads its program from there."""
FENCE_MARGIN_MS = 300
"""Time of the helper to carry out the fence. The coordinator begins no round for one second."""


class HelperWatch:
    """The helper of one agent, and its successors."""

    def __init__(self, host: WorkerHost, post: Callable[[inputs.Input], None]) -> None:
        """Take the first helper; `begin` watches it.

        Args:
            host: that helper.
            post: takes inputs of the core.
        """
        self.host = host
        """The helper of the moment."""
        self.is_sweeping = False
        """Everything below it has to end now."""
        self.is_used = False
        """Something may run below it: from the start of a round until it is swept."""
        self.is_gone = False
        """It is lost, and cannot be replaced."""
        self._post = post
        self._on_event: Callable[[HostEvent], None] | None = None
        self._fence_at_ms: int | None = None
        """When it kills everything, by the monotonic clock; None: never."""
        self._watched: WorkerHost | None = None
        """The helper that was asked last."""
        self._silent_s = 0
        self._due_s = 0.0
        """When the next look is due, by the loop's clock."""
        self._look_timer: asyncio.TimerHandle | None = None
        self._fence_timer: asyncio.TimerHandle | None = None

    def begin(self, on_event: Callable[[HostEvent], None]) -> None:
        """Begin to listen to the helper, and to watch it.

        Args:
            on_event: takes what this helper and its successors report.
        """
        self._on_event = on_event
        self.host.attach(on_event)
        self._ask(self.host)
        self._look_later()

    def request(self, request: Callable[[WorkerHost], None]) -> None:
        """Send a request, or log that it failed: the loss of the helper is reported then."""
        try:
            request(self.host)
        except WorkerHostError as error:
            log.warning("helper_request_failed", error=str(error))

    def replace(self) -> None:
        """Start a new helper, once the old one and everything below it are gone.

        Raises:
            HelperIrreplaceable: the agent cannot run workers any more.
        """
        try:
            self.host = self.host.replacement()
        except HelperIrreplaceable:
            self.is_gone = True
            raise
        if self._on_event is not None:
            self.host.attach(self._on_event)
        if self._fence_at_ms is not None:
            self.arm_fence(self._fence_at_ms)

    def close(self) -> None:
        """Watch no longer: the helper is about to be closed."""
        for timer in (self._look_timer, self._fence_timer):
            if timer is not None:
                timer.cancel()

    def _look_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + TICK_S
        self._look_timer = loop.call_at(self._due_s, self._look)

    # --- signs of life ---

    def _look(self) -> None:
        host = self.host
        is_on_time = asyncio.get_running_loop().time() - self._due_s <= LATE_S_MAX
        self._look_later()
        if host is not self._watched or not host.is_silent:
            self._note_answer(host)
            self._ask(host)
        elif is_on_time and host.takes_requests:
            self._silent_s += 1
            self._note_silence(host)

    def _ask(self, host: WorkerHost) -> None:
        self._watched = host
        if host.takes_requests:
            self.request(lambda host: host.ping())

    def _note_answer(self, host: WorkerHost) -> None:
        if self._silent_s >= NOTICED_S:
            self._post(inputs.HelperAnswered())
            if host is self._watched:
                log.info("helper_answered_again", pid=host.pid, silent_s=self._silent_s)
        self._silent_s = 0

    def _note_silence(self, host: WorkerHost) -> None:
        is_hurried = host.is_replaceable and (self.is_sweeping or not self.is_used)
        limit_s = SILENT_S_MAX if is_hurried else FROZEN_S_MAX
        if self._silent_s == NOTICED_S:
            is_waiting = host.is_replaceable and not is_hurried
            ends = ", or once its workers have to end" if is_waiting else ""
            then = f"it is killed after {limit_s} s{ends}"
            log.warning("helper_stalled", pid=host.pid, for_s=self._silent_s, then=then)
            self._post(inputs.HelperSilent(host.pid))
        if self._silent_s >= limit_s:
            self._kill(host, f"it has not answered for {self._silent_s} s")

    # --- the fence ---

    def arm_fence(self, at_ms: int) -> None:
        """Let everything be killed at this monotonic time, whether agent or helper fails by then.

        A later call moves that time.
        """
        self._fence_at_ms = at_ms
        self.request(lambda host: host.arm_fence(at_ms))
        if self._fence_timer is not None:
            self._fence_timer.cancel()
        loop = asyncio.get_running_loop()
        due_s = (at_ms + FENCE_MARGIN_MS) / 1000
        self._fence_timer = loop.call_at(due_s, self._enforce, at_ms, due_s)

    def _enforce(self, at_ms: int, due_s: float) -> None:
        host, loop = self.host, asyncio.get_running_loop()
        if not self.is_used or not host.takes_requests:
            return
        if host.fenced_ms is not None and host.fenced_ms >= at_ms:
            return
        if loop.time() - due_s > LATE_S_MAX:  # both stood still: the helper has its time again
            due_s = loop.time() + FENCE_MARGIN_MS / 1000
            self._fence_timer = loop.call_at(due_s, self._enforce, at_ms, due_s)
            return
        self._kill(host, "it has not carried out the fence")

    def _kill(self, host: WorkerHost, why: str) -> None:
        log.error("helper_killed", pid=host.pid, why=why, then="its workers die with it")
        host.kill()
