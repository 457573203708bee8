"""Counts what each host uses, and refuses what exceeds the limits, before the core learns of it.

New sessions have a token bucket per host: it holds `SESSIONS_AT_ONCE_MAX`, and each minute adds
`SESSIONS_PER_MINUTE_MAX`. A session that the coordinator knows may reconnect as often as it has to.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct, field

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.rpc.guards import limits

log = get_logger()

PREFIX_BITS = 64
"""The part of an IPv6 address that counts as one host."""
RETRY_S = 5.0
"""When to try again: the agents of a large job, refused all at once, must not return at once."""
HOSTS_SHOWN_MAX = 4_096
PEER_CHARS_MAX = 253
"""Of a peer that a relay names."""
PEER_KINDS = ("ipv4:", "ipv6:", "unix:")


class LimitExceeded(Exception):
    """A limit is reached."""

    def __init__(self, limit: Limit, value: int, retry_s: float | None = None) -> None:
        """Keep what the refusal says.

        Args:
            limit: the limit.
            value: its value.
            retry_s: when another attempt may succeed; None: probably not soon.
        """
        super().__init__(f"{value} {limit.value}")
        self.limit = limit
        self.value = value
        self.retry_s = retry_s


class Stream(Struct):
    """An agent's stream, while it is open."""

    host: str
    job_id: JobId | None = None
    """Set once its Hello was admitted."""
    has_paid: bool = False
    """Its Hello counts as a new session."""


class _Host(Struct):
    """What a host uses."""

    tokens: float
    """New sessions that it may open now."""
    counted_s: float
    """When `tokens` was right."""
    streams: int = 0
    jobs: Counter[JobId] = field(default_factory=Counter)
    """Its streams in each job."""
    warned_s: float | None = None
    """When the log last named it."""


class Peers:
    """What every host uses."""

    def __init__(self) -> None:
        """Start without streams."""
        self._hosts: dict[str, _Host] = {}
        """Hosts with streams."""
        self._idle: dict[str, _Host] = {}
        """Hosts whose last stream has ended, the earliest first; at most `HOSTS_MAX`."""
        self._carried: dict[str, Counter[str]] = {}
        """The hosts of agents that relays carry, by the host of the relay."""

    @contextmanager
    def carried(self, relay: str, host: str) -> Iterator[None]:
        """Note that a relay carries an agent while the context is open; both are hosts."""
        hosts = self._carried.setdefault(relay, Counter())
        hosts[host] += 1
        try:
            yield
        finally:
            hosts[host] -= 1
            if not hosts[host]:
                del hosts[host]
            if not hosts:
                self._carried.pop(relay, None)

    def is_relay(self, peer: str) -> bool:
        """Return whether a relay on the host of this peer carries agents."""
        return bool(self._carried) and host_of(peer) in self._carried

    def find_caller(self, peer: str, relayed: str) -> str:
        """Return the peer whose host counts for a call.

        A relay says for whom it makes a call, and is believed if it carries an agent of that host.
        So no one has more room in the limits than its agents give it.

        Args:
            peer: that has made the call.
            relayed: for whom a relay has made it, as the call says; empty: no one.
        """
        hosts = self._carried.get(host_of(peer)) if is_peer(relayed) else None
        return relayed if hosts and host_of(relayed) in hosts else peer

    @contextmanager
    def stream(self, host: str, now_s: float) -> Iterator[Stream]:
        """Count an agent's stream while the context is open.

        Args:
            host: as `host_of` names it.
            now_s: monotonic time.

        Raises:
            LimitExceeded: when the host has as many streams as it may have.
        """
        used = self._find(host, now_s)
        if used.streams >= limits.STREAMS_PER_HOST_MAX:
            most = limits.STREAMS_PER_HOST_MAX
            self._refuse(host, Limit.STREAMS_PER_HOST, most, RETRY_S, now_s)
        used.streams += 1
        stream = Stream(host)
        try:
            yield stream
        finally:
            used.streams -= 1
            if stream.job_id is not None:
                used.jobs[stream.job_id] -= 1
                if not used.jobs[stream.job_id]:
                    del used.jobs[stream.job_id]
            if not used.streams:
                self._rest(host)

    def admit(self, stream: Stream, job_id: JobId, now_s: float, *, is_new: bool) -> None:
        """Count the Hello of a stream.

        Args:
            stream: its stream.
            job_id: the job that it names.
            now_s: monotonic time.
            is_new: the coordinator does not know its session.

        Raises:
            LimitExceeded: when the host opens sessions too fast, or is in too many jobs.
        """
        used = self._hosts[stream.host]
        if is_new:
            if job_id not in used.jobs and len(used.jobs) >= limits.JOBS_PER_HOST_MAX:
                most = limits.JOBS_PER_HOST_MAX
                self._refuse(stream.host, Limit.JOBS_PER_HOST, most, RETRY_S, now_s)
            per_s = limits.SESSIONS_PER_MINUTE_MAX / 60
            grown = used.tokens + (now_s - used.counted_s) * per_s
            used.tokens, used.counted_s = min(limits.SESSIONS_AT_ONCE_MAX, grown), now_s
            if used.tokens < 1:
                most, limit = limits.SESSIONS_PER_MINUTE_MAX, Limit.SESSIONS_PER_HOST
                retry_s = max(RETRY_S, (1 - used.tokens) / per_s)
                self._refuse(stream.host, limit, most, retry_s, now_s)
            used.tokens -= 1
            stream.has_paid = True
        stream.job_id = job_id
        used.jobs[job_id] += 1

    def refund(self, stream: Stream) -> None:
        """Give back what a new session has cost that was refused only for now, and will try again.

        Agents that wait for the end of an earlier run must not use up what their host may open.
        """
        if stream.has_paid:
            stream.has_paid = False
            self._hosts[stream.host].tokens += 1

    def _find(self, host: str, now_s: float) -> _Host:
        """Return what a host uses."""
        used = self._hosts.get(host) or self._idle.pop(host, None)
        if used is None:
            used = _Host(limits.SESSIONS_AT_ONCE_MAX, now_s)
        self._hosts[host] = used
        return used

    def _rest(self, host: str) -> None:
        """Note that a host has no more streams; forget the one without streams for longest."""
        self._idle[host] = self._hosts.pop(host)
        if len(self._idle) > limits.HOSTS_MAX:
            del self._idle[next(iter(self._idle))]

    def _refuse(self, host: str, limit: Limit, value: int, retry_s: float, now_s: float) -> None:
        used = self._hosts[host]
        if used.warned_s is None or now_s - used.warned_s >= limits.WARNED_S_MIN:
            used.warned_s = now_s
            log.warning("host_limited", host=host, limit=limit.value, value=value)
        raise LimitExceeded(limit, value, retry_s)


@lru_cache(maxsize=HOSTS_SHOWN_MAX)
def _show_address(text: str) -> str:
    """Return an address as the name of its host."""
    try:
        address = ipaddress.ip_address(unquote(text).strip("[]").partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_BITS), strict=False))


def is_peer(text: str) -> bool:
    """Return whether a text, which a relay has sent, looks like a gRPC peer."""
    return len(text) <= PEER_CHARS_MAX and text.startswith(PEER_KINDS)


def host_of(peer: str) -> str:
    """Return the host of a gRPC peer such as ipv4:10.0.0.1:4711 or ipv6:%5B::1%5D:4711."""
    kind, _, rest = peer.partition(":")
    return _show_address(rest.rpartition(":")[0]) if kind in ("ipv4", "ipv6") else peer
