"""Limits the lines of the log that one host can cause: a faulty program must not fill the disk.

After the limit there is one line a minute with the number of the others. What a relay carries
counts for the host that the relay names, and, with more room, for the relay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from enum import Enum
from functools import partial

from msgspec import Struct

from rallypoint.base.log import get_logger
from rallypoint.server.contract import limits

log = get_logger()

MINUTE_S = 60.0


class Kind(Enum):
    """What a line is about. Each has its own allotment: a flood of one hides no line of another."""

    ADMISSION = "admission"
    """A session or a relay that is let in."""
    REFUSAL = "refusal"
    """A call that is refused because of who makes it."""
    RUN = "run"
    """A run that is opened, with all its lines."""
    OTHER = "other"
    """A message or an input that is refused, or a stream that ends for another fault."""


class _Minute(Struct):
    """The lines of one kind that a host has caused in a minute."""

    since_s: float
    lines: int = 0
    hidden: int = 0


class Lines:
    """The lines that hosts have caused in the last minute."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """Begin without lines; `clock_s` returns monotonic time."""
        self._clock_s = clock_s
        self._minutes: dict[tuple[str, Kind], _Minute] = {}
        """By host, the one that has begun first is the first one; at most `HOSTS_MAX`."""

    def allow(self, hosts: Sequence[str], kind: Kind) -> bool:
        """Count a line; return whether it may be written.

        Args:
            hosts: as `hosts_of` names them; none: those who cause it have one allotment together.
            kind: what the line is about.
        """
        self.flush()
        minutes = list[_Minute]()
        for host, most in _shares(hosts, kind):
            minute = self._find(host, kind)
            if minute.lines >= most:
                minute.hidden += 1
                return False
            minutes.append(minute)
        for minute in minutes:
            minute.lines += 1
        return True

    def _find(self, host: str, kind: Kind) -> _Minute:
        minute = self._minutes.get((host, kind))
        if minute is None:
            minute = self._minutes[host, kind] = _Minute(self._clock_s())
            if len(self._minutes) > limits.HOSTS_MAX:
                self._close(*next(iter(self._minutes)))
        return minute

    async def look(self) -> None:
        """Do what is due every few seconds."""
        self.flush()

    def flush(self) -> None:
        """Note how many lines were left out, of minutes that are over."""
        now_s = self._clock_s()
        while self._minutes:
            first, minute = next(iter(self._minutes.items()))
            if now_s - minute.since_s < MINUTE_S:
                return
            self._close(*first)

    def close(self) -> None:
        """Note all that were left out: the coordinator ends."""
        for one in tuple(self._minutes):
            self._close(*one)

    def _close(self, host: str, kind: Kind) -> None:
        hidden = self._minutes.pop((host, kind)).hidden
        if not hidden:
            return
        match kind:
            case Kind.REFUSAL:
                log.warning("audit_shortened", host=host, more_refusals=hidden)
            case Kind.ADMISSION:
                log.info("audit_shortened", host=host, more_admissions=hidden)
            case Kind.RUN:
                log.warning("log_shortened", host=host or "unknown", more_runs=hidden)
            case Kind.OTHER:
                log.warning("log_shortened", host=host or "unknown", more_lines=hidden)


def _shares(hosts: Sequence[str], kind: Kind) -> Iterator[tuple[str, int]]:
    """Yield whose allotments a line takes from, and what they have; a relay's comes first.

    So a relay that names one host after the other is not remembered with each of them.
    """
    most, of_relay = limits.LINES_PER_MINUTE_MAX, limits.LINES_PER_RELAY_MAX
    if kind is Kind.RUN:
        most, of_relay = limits.RUNS_PER_MINUTE_MAX, limits.RUNS_PER_RELAY_MAX
    for relay in hosts[1:]:
        yield f"via {relay}", of_relay
    yield hosts[0] if hosts else "", most


_MAY_LOG: ContextVar[Callable[[], bool] | None] = ContextVar("may_log", default=None)
"""Counts a line that the caller who is served causes; None: no caller is served."""


def bind_caller(lines: Lines, hosts: Sequence[str]) -> None:
    """Count the lines that `may_log` allows from now on for the hosts of a caller."""
    _MAY_LOG.set(partial(lines.allow, hosts, Kind.OTHER))


def may_log() -> bool:
    """Count a line that the caller who is served has caused; return whether it may be written."""
    allow = _MAY_LOG.get()
    return allow is None or allow()
