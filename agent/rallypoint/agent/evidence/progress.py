"""Decides whether the workers of a node stand still, and when to look at them next. Pure.

A worker that uses collectives makes progress when it enters or completes one; torch records when.
One without collectives makes progress when it uses a processor or writes something. That says far
less, and such work may rest for minutes: a download, a compilation, a checkpoint. So it has the
longer limit, `first_after_ms`, like any worker before its first collective.

The node stands still when each live worker has made no progress for its limit. The rules on doubt
say that there is progress, because a false alarm may end a healthy job:
  * What happened at an unknown time between two looks happened as late as it can have.
  * A worker that a debugger holds, or that the agent cannot see, makes progress. One that does not
    answer, while the agent sees that it lives, gets MUTE_LOOKS looks; one that a signal has stopped
    gets no more than others.
  * The agent itself may stand still: time in which it could not look makes no worker older. Nor
    does time in which it made the workers do something, unless they stood still before.

Times of the recorder are the wall clock's, which may jump; all others are the agent's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from rallypoint.agent.evidence.processes import Usage
from rallypoint.agent.evidence.recorder import Mark

LOOK_MS = 1_000
"""Least time between two looks; a look costs a worker about 10 ms."""
LATE_MS = 2_000
"""A look that comes later than this shows that the agent has stood still."""
JUMP_MS = 1_000
"""A larger change of the wall clock against the agent's is a jump."""
CPU_PERCENT = 5
"""Of a core: what a waiting process uses less than."""
MUTE_LOOKS = 3
"""Looks in a row without an answer after which a worker may count as standing still."""
LOOKS_OF_FIRST = 10
"""Looks at the use of a processor within `first_after_ms`."""


class Limits(Struct, frozen=True):
    """How long a worker may make no progress."""

    after_ms: int
    """After its first collective; not 0."""
    first_after_ms: int
    """Before that, or without collectives; 0: without a limit."""

    @property
    def pause_ms(self) -> int:
        """Most time between two looks at a worker without collectives."""
        first_ms = self.first_after_ms // LOOKS_OF_FIRST or self.after_ms
        return max(LOOK_MS, min(self.after_ms, first_ms))


class Observation(Struct, frozen=True):
    """What a look has found out about a live worker."""

    worker_id: int
    is_store: bool = False
    """It serves the store of the process groups, if there are any."""
    usage: dict[int, Usage] | None = None
    """Of its processes; None: the agent could not look."""
    mark: Mark | None = None
    """None: no recorder can be read, or it has not answered."""
    is_mute: bool = False
    """It has not answered."""
    is_traced: bool = False
    """A debugger holds it."""
    is_stopped: bool = False
    """A signal has stopped it."""
    wrote_ms: int | None = None
    """When it last wrote to standard error; None: not known."""


class Known(Struct, frozen=True):
    """What is known about a worker."""

    latest_ms: int
    """When its latest progress was made."""
    used_ms: int
    """When `usage` was read."""
    usage: dict[int, Usage] = {}
    mark: Mark | None = None
    """The last one."""
    mute_looks: int = 0
    """Looks in a row that it has not answered."""

    @property
    def has_collectives(self) -> bool:
        """Whether its recorder tells its progress."""
        return self.mark is not None and self.mark.newest is not None


class NodeProgress(Struct, frozen=True):
    """What is known about the workers of a node after a look."""

    limits: Limits
    looked_ms: int
    """Time of the look, or of the start of the workers."""
    due_ms: int
    """When to look next."""
    offset_ns: int
    """Wall clock minus the agent's."""
    workers: dict[int, Known] = {}
    still_since_ms: int | None = None
    """When the latest progress of any worker was made, if they stand still; else None."""

    def looked(
        self,
        observations: Sequence[Observation],
        now_ms: int,
        wall_ns: int,
        *,
        is_disturbed: bool = False,
    ) -> NodeProgress:
        """Return what is known after another look.

        Args:
            observations: of all live workers.
            now_ms: when the look began.
            wall_ns: the wall clock then.
            is_disturbed: the agent itself has let the workers do something since the last look.
        """
        # Since when it has stood still is not known: perhaps since the look before.
        late_ms = now_ms - self.looked_ms if now_ms - self.due_ms > LATE_MS else 0
        look = _Look(
            before_ms=self.looked_ms + late_ms,
            now_ms=now_ms,
            wall_ns=wall_ns,
            has_jumped=abs(_offset(now_ms, wall_ns) - self.offset_ns) > JUMP_MS * 1_000_000,
            is_disturbed=is_disturbed,
            is_still=self.still_since_ms is not None,
        )
        workers: dict[int, Known] = {}
        for seen in observations:
            # A worker that was started since the last look has its time from then on.
            known = self.workers.get(seen.worker_id, Known(self.looked_ms, self.looked_ms))
            known = replace(known, latest_ms=known.latest_ms + late_ms)
            workers[seen.worker_id] = look.judge(known, seen)
        return self._after(workers, now_ms, wall_ns)

    def _after(self, workers: dict[int, Known], now_ms: int, wall_ns: int) -> NodeProgress:
        ends_ms = [self._end_ms(known, now_ms) for known in workers.values()]
        end_ms = max((now_ms if one is None else one for one in ends_ms), default=now_ms)
        is_still = bool(ends_ms) and None not in ends_ms and end_ms <= now_ms
        due_ms = end_ms
        if not is_still and not all(known.has_collectives for known in workers.values()):
            pause_ms = now_ms + self.limits.pause_ms
            due_ms = pause_ms if None in ends_ms else min(end_ms, pause_ms)
        if not workers:
            due_ms = now_ms + self.limits.pause_ms
        still_since_ms = max((known.latest_ms for known in workers.values()), default=now_ms)
        return replace(
            self,
            looked_ms=now_ms,
            due_ms=max(now_ms + LOOK_MS, due_ms),
            offset_ns=_offset(now_ms, wall_ns),
            workers=workers,
            still_since_ms=still_since_ms if is_still else None,
        )

    def _end_ms(self, known: Known, now_ms: int) -> int | None:
        """Return from when on a worker stands still if nothing happens; None: it never does."""
        limit_ms = self.limits.after_ms if known.has_collectives else self.limits.first_after_ms
        if limit_ms == 0:
            return None
        end_ms = known.latest_ms + limit_ms
        return max(end_ms, now_ms + LOOK_MS) if 0 < known.mute_looks < MUTE_LOOKS else end_ms


def begin(limits: Limits, now_ms: int, wall_ns: int) -> NodeProgress:
    """Return what is known when the workers start."""
    return NodeProgress(limits, now_ms, now_ms + limits.pause_ms, _offset(now_ms, wall_ns))


class _Look(Struct, frozen=True):
    """A look, apart from what it has found."""

    before_ms: int
    """Time of the look before."""
    now_ms: int
    wall_ns: int
    has_jumped: bool
    is_disturbed: bool
    is_still: bool
    """The workers stood still at the look before."""

    def judge(self, known: Known, seen: Observation) -> Known:
        """Return what is known of a worker now."""
        latest_ms, mark = known.latest_ms, known.mark
        if seen.mark is not None:
            if seen.mark != mark:
                latest_ms = max(latest_ms, self._date(mark, seen.mark))
            mark = seen.mark
        elif not seen.is_mute:
            mark = None  # for example it has closed the socket
        is_waited = seen.is_mute and not seen.is_stopped
        mute_looks = known.mute_looks + 1 if is_waited else 0
        after = replace(known, latest_ms=latest_ms, mark=mark, mute_looks=mute_looks)
        if seen.usage is None or seen.is_traced:
            after = replace(after, latest_ms=self.now_ms)
        elif not after.has_collectives:
            after = replace(after, latest_ms=self._date_use(after, seen))
        if seen.usage is not None:
            after = replace(after, usage=seen.usage, used_ms=self.now_ms)
        return after

    def _date(self, before: Mark | None, mark: Mark) -> int:
        """Return when the progress was made that a new mark shows."""
        if before is not None and mark.latest_ns <= before.latest_ns:
            # An operation has ended, which another worker has entered later; or the clock jumped.
            return self.before_ms if mark.newest == before.newest else self.now_ms
        if self.has_jumped:
            return self.now_ms
        age_ms = (self.wall_ns - mark.latest_ns) // 1_000_000
        return min(self.now_ms, max(self.before_ms, self.now_ms - age_ms))

    def _date_use(self, known: Known, seen: Observation) -> int:
        """Return when a worker without collectives last made progress."""
        if not self.is_disturbed:
            return self.now_ms if self._is_busy(known, seen) else known.latest_ms
        return known.latest_ms + (0 if self.is_still else self.now_ms - self.before_ms)

    def _is_busy(self, known: Known, seen: Observation) -> bool:
        """Return whether a worker has used a processor or written something since the last look."""
        none = Usage(0, 0)
        pairs = [(one, known.usage.get(pid, none)) for pid, one in (seen.usage or {}).items()]
        cpu_ms = sum(max(0, one.cpu_ms - before.cpu_ms) for one, before in pairs)
        if cpu_ms > 0 and cpu_ms * 100 >= CPU_PERCENT * (self.now_ms - known.used_ms):
            return True
        if seen.wrote_ms is not None and seen.wrote_ms > known.used_ms:
            return True
        # The store answers the other workers all the time, and its answers look like output.
        serves = seen.is_store and known.mark is not None and known.mark.has_groups
        return not serves and any(one.written > before.written for one, before in pairs)


def _offset(now_ms: int, wall_ns: int) -> int:
    return wall_ns - now_ms * 1_000_000
