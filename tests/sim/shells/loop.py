"""Virtual time, and the event loop of each simulated process.

The clock of the `Schedule` stands still while any process has something to do. Then it jumps to
the next timer. Of several processes that are ready a seeded draw chooses, as the kernel may choose
any.

A `Loop` runs the callbacks that are ready when its turn comes, as asyncio's own loop does. A
process that is frozen or busy gets no turn; one that was killed gets none ever again, so nothing of
its code runs after the kill, not even a `finally`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from random import Random
from typing import Any, Protocol, TypeVar, TypeVarTuple, cast

from sim.world.clock import Livelock, Timer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NS = 1_000_000_000
START_NS = 1_000 * NS
"""Monotonic time at the beginning of a seed."""
BOOT_UNIX_NS = 1_800_000_000 * NS
"""Unix time when the monotonic clock was 0."""
TURNS_AT_ONCE_MAX = 20_000
"""More turns at one time than any seed needs: an endless loop."""

LOOK_UP_S = 0.02
"""How long the look-up of a name takes."""


class NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class Clock(Protocol):
    """Gives loops their turns."""

    @property
    def now_ns(self) -> int:
        """Monotonic time."""

    def clock_ns(self) -> int:
        """Return the monotonic clock of the process that has its turn."""

    def add(self, at_ns: int, timer: Timer | asyncio.TimerHandle | None, loop: Loop | None) -> None:
        """Make a timer due; None only wakes the loop."""

    def queue(self, loop: Loop) -> None:
        """Note that a process has something to do."""


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, schedule: Clock, name: str, rng: Random) -> None:
        self.schedule = schedule
        self.name = name
        self.rng = rng
        """Draws the jitter of this process."""
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        """All tasks of the process, oldest first."""
        self.failures: list[dict[str, Any]] = []
        """Exceptions that nothing handled."""
        self.wake_ns = 0
        """The process gets no turn before: it is frozen, or busy."""
        self.thaws_ns = 0
        """When the last freeze ends, or has ended."""
        self.is_queued = False
        self.is_awaited = False
        """The schedule wakes it at `wake_ns`."""
        self.is_dead = False
        self.threads_busy_s: Callable[[], float] = lambda: 0.0
        """Draws how long the next call of a thread takes."""
        self.holds_stderr: Callable[[], bool] = lambda: False
        """Draws whether the standard error of a worker that has ended stays open for long."""
        self.wall_ahead_ns = 0
        """How far the wall clock of its host is ahead of the others."""
        self.journal_s = 0.0
        """How long the journal of the process takes, at most."""
        self._busy_ns = 0
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # --- time ---

    def now_ns(self) -> int:
        """Return the clock of the process: ahead of the schedule's while it computes."""
        return max(self.schedule.now_ns, self._busy_ns)

    def time(self) -> float:
        return self.now_ns() / NS

    def spend(self, ns: int) -> None:
        """Let the process compute for so long."""
        self._busy_ns = self.now_ns() + ns
        self.wake_ns = max(self.wake_ns, self._busy_ns)

    def freeze(self, ns: int) -> None:
        """Give the process no turn for so long, from now on."""
        self.wake_ns = max(self.wake_ns, self.schedule.now_ns + ns)
        self.thaws_ns = max(self.thaws_ns, self.wake_ns)

    @property
    def is_frozen(self) -> bool:
        """Return whether the process gets no turn now: it is frozen, or busy."""
        return self.wake_ns > self.schedule.now_ns

    def thaw(self) -> None:
        """End a freeze."""
        self.wake_ns = self._busy_ns
        self.thaws_ns = min(self.thaws_ns, self.schedule.now_ns)
        self.schedule.queue(self)

    def turn(self) -> None:
        """Run what is ready now; what it adds waits for the next turn."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(self.ready)):
                handle = self.ready.popleft()
                if not handle._cancelled:
                    handle._run()
                if self.is_dead:
                    return
        finally:
            asyncio._set_running_loop(None)
        if self.ready:
            self.schedule.queue(self)

    # --- what asyncio asks of a loop ---

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        self.schedule.queue(self)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        # One more, so that `time()` is never below `when`: a waiter would then wait once more.
        self.schedule.add(math.ceil(when * NS) + 1, timer, self)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: the schedule skips it."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        assert isinstance(coro, Coroutine)
        number = len(self.tasks)
        task: asyncio.Task[T] = NumberedTask(
            coro, number=number, loop=self, name=name, context=context
        )
        self.tasks.append(task)
        return task

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        await asyncio.sleep(LOOK_UP_S)
        return []

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> Any:
        """Return what a thread would, which takes no time."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        raise AssertionError("signals are posted by hand")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    # --- what nothing handled ---

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        self._handler = handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.failures.append(context)
        if self._handler is not None:
            self._handler(self, context)

    def unhandled(self) -> list[str]:
        """Return the exceptions that no code of the process handled."""
        lost = [f"{one.get('message')}: {one.get('exception')!r}" for one in self.failures]
        for task in self.tasks:
            # Set until something retrieves the exception.
            if task.done() and not task.cancelled() and getattr(task, "_log_traceback", False):
                lost.append(f"task failed: {task.exception()!r}")
        return lost

    def pending(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that have not ended."""
        return [task for task in self.tasks if not task.done()]


def new_loop(schedule: Clock, name: str, rng: Random) -> Loop:
    """Return a loop. Much of what asyncio's interface has is missing: nothing here needs it."""
    loop: Loop = cast(Any, Loop)(schedule, name, rng)
    return loop


_Entry = tuple[int, int, Timer | asyncio.TimerHandle | None, Loop | None]


class Schedule:
    """The clock that all processes share, and their turns."""

    def __init__(self, rng: Random) -> None:
        self.now_ns = START_NS
        self.is_halted = False
        """Set to end `run` after the present turn."""
        self.turns = 0
        self._rng = rng
        self._heap: list[_Entry] = []
        self._added = 0
        self._runnable: list[Loop] = []

    @property
    def now_ms(self) -> int:
        """Milliseconds since the beginning of the seed."""
        return (self.now_ns - START_NS) // 1_000_000

    def clock_ns(self) -> int:
        """Return the monotonic clock of the process that has its turn."""
        loop = asyncio._get_running_loop()
        return loop.now_ns() if isinstance(loop, Loop) else self.now_ns

    def add(self, at_ns: int, timer: Timer | asyncio.TimerHandle | None, loop: Loop | None) -> None:
        """Make a timer due; None only wakes the loop."""
        self._added += 1
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), self._added, timer, loop))

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call outside all processes after a delay."""
        timer = Timer(call)
        self.add(self.now_ns + int(delay_s * NS), timer, None)
        return timer

    def queue(self, loop: Loop) -> None:
        """Note that a process has something to do."""
        if loop.is_queued or loop.is_dead:
            return
        if loop.wake_ns > self.now_ns:
            if not loop.is_awaited:
                loop.is_awaited = True
                self.add(loop.wake_ns, None, loop)
            return
        loop.is_queued = True
        self._runnable.append(loop)

    def run(self, until_ns: int) -> None:
        """Run every turn and timer up to `until_ns`, unless something halts the schedule.

        Raises:
            Livelock: time does not pass any more.
        """
        at_once = 0
        while not self.is_halted:
            if self._runnable:
                at_once += 1
                if at_once > TURNS_AT_ONCE_MAX:
                    raise Livelock(f"at {self.now_ms} ms")
                self._give_turn()
            elif self._heap and self._heap[0][0] <= until_ns:
                at_ns, _, timer, loop = heapq.heappop(self._heap)
                at_once = at_once if at_ns == self.now_ns else 0
                self.now_ns = at_ns
                self._fire(timer, loop)
            else:
                self.now_ns = max(self.now_ns, until_ns)
                return

    def _give_turn(self) -> None:
        count = len(self._runnable)
        loop = self._runnable.pop(self._rng.randrange(count) if count > 1 else 0)
        loop.is_queued = False
        if loop.is_dead:
            return
        if loop.wake_ns > self.now_ns:  # frozen while it waited for its turn
            self.queue(loop)
            return
        self.turns += 1
        loop.turn()

    def _fire(self, timer: Timer | asyncio.TimerHandle | None, loop: Loop | None) -> None:
        if timer is None:
            assert loop is not None
            loop.is_awaited = False
            if loop.ready:
                self.queue(loop)
        elif isinstance(timer, Timer):
            if not timer.cancelled:
                timer.call()
        elif not timer.cancelled():
            assert loop is not None
            loop.ready.append(timer)
            self.queue(loop)


class VirtualTime:
    """Stands for the module `time`."""

    def __init__(self, schedule: Clock, boot_unix_ns: int = BOOT_UNIX_NS) -> None:
        self._schedule = schedule
        self._boot_unix_ns = boot_unix_ns

    def monotonic_ns(self) -> int:
        return self._schedule.clock_ns()

    def monotonic(self) -> float:
        return self._schedule.clock_ns() / NS

    def time_ns(self) -> int:
        loop = asyncio._get_running_loop()
        ahead_ns = loop.wall_ahead_ns if isinstance(loop, Loop) else 0
        return self._schedule.clock_ns() + self._boot_unix_ns + ahead_ns

    def time(self) -> float:
        return self.time_ns() / NS

    def thread_time(self) -> float:
        return 0.0  # computing takes no time here
