"""Counts what each host uses, and refuses what exceeds the limits, before the core learns of it.

New sessions have an allowance per host: it holds `SESSIONS_AT_ONCE_MAX`, and each minute adds
`SESSIONS_PER_MINUTE_MAX`. A session that the coordinator knows may reconnect as often as it has to.
The runs that new sessions open have a smaller one: each costs as much as many sessions.
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct, field

from rallypoint.base.log import get_logger
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.rpc.calls import LimitExceeded
from rallypoint.server.rpc.guards import limits
from rallypoint.server.rpc.guards.allowance import Allowance
from rallypoint.server.rpc.guards.lines import Lines

log = get_logger()

PREFIX_BITS = 64
"""The part of an IPv6 address that counts as one host."""
RETRY_S = 5.0
"""When to try again: the agents of a large job, refused all at once, must not return at once."""
HOSTS_SHOWN_MAX = 4_096
PEER_CHARS_MAX = 253
"""Of a peer that a relay names."""
_PEER = re.compile("(ipv4|ipv6|unix):[!-~]+")
VIA = " via "
"""Between a peer that a relay has named and the relay. A relay may name any, so both together count
as one more host: no relay uses up what the host that it names may use by itself."""


class Stream(Struct):
    """An agent's stream, while it is open."""

    hosts: tuple[str, ...]
    """That it counts for: its own, and that of the relay that carries it."""
    holder: str = ""
    """Name of its token, if that is bound to jobs."""
    job_id: JobId | None = None
    """Set once its Hello was admitted."""
    has_paid: bool = False
    """Its Hello counts as a new session."""
    runs: float = 0.0
    """New runs as which it counts."""


class _Host(Struct):
    """What a host uses."""

    sessions: Allowance = field(default_factory=Allowance)
    """New ones that it may open now."""
    runs: Allowance = field(default_factory=Allowance)
    """The same."""
    streams: int = 0
    jobs: Counter[JobId] = field(default_factory=Counter)
    """Its streams in each job."""
    warned_s: float | None = None
    """When the log last named it."""


class Peers:
    """What every host uses."""

    def __init__(self, lines: Lines | None = None) -> None:
        """Start without streams; `lines` counts lines of the log, None: of these hosts alone."""
        self.lines = lines or Lines(time.monotonic)
        self._hosts: dict[str, _Host] = {}
        """Hosts with streams."""
        self._idle: dict[str, _Host] = {}
        """Hosts whose last stream has ended, the earliest first; at most `HOSTS_MAX`."""
        self._holders: dict[str, Counter[JobId]] = {}
        """The streams in each job with a token that is bound to jobs."""
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
        return name_by(peer, relayed) if hosts and host_of(relayed) in hosts else peer

    @contextmanager
    def stream(self, peer: str, now_s: float) -> Iterator[Stream]:
        """Count an agent's stream while the context is open.

        Args:
            peer: of the stream; one that a relay has named counts for the relay's host, too.
            now_s: monotonic time.

        Raises:
            LimitExceeded: when a host has as many streams as it may have.
        """
        stream = Stream(hosts_of(peer))
        with ExitStack() as counted:
            for host in stream.hosts:
                counted.enter_context(self._streaming(host, now_s))
            try:
                yield stream
            finally:
                self._forget_job(stream)

    @contextmanager
    def _streaming(self, host: str, now_s: float) -> Iterator[None]:
        """Count a stream of a host while the context is open."""
        used = self._find(host, now_s)
        if used.streams >= limits.STREAMS_PER_HOST_MAX:
            most = limits.STREAMS_PER_HOST_MAX
            self._refuse(host, Limit.STREAMS_PER_HOST, most, RETRY_S, now_s)
        used.streams += 1
        try:
            yield
        finally:
            used.streams -= 1
            if not used.streams:
                self._rest(host)

    def admit(
        self, stream: Stream, job_id: JobId, now_s: float, *, is_new: bool, runs: float = 0.0
    ) -> None:
        """Count the Hello of a stream.

        Args:
            stream: its stream.
            job_id: the job that it names.
            now_s: monotonic time.
            is_new: the coordinator does not know its session.
            runs: new runs as which it counts, unless another Hello has come for its job already.

        Raises:
            LimitExceeded: when a host opens sessions or runs too fast, or it or a token is in too
                many jobs.
        """
        if is_new:
            if any(job_id in self._hosts[host].jobs for host in stream.hosts):
                runs = 0.0
            for host in stream.hosts:
                self._require_room(host, job_id, now_s, opens=runs > 0)
            self._require_holder(stream, job_id, now_s)
            stream.has_paid, stream.runs = True, runs
            self._charge(stream, 1)
        stream.job_id = job_id
        for jobs in self._jobs_of(stream):
            jobs[job_id] += 1

    def _require_room(self, host: str, job_id: JobId, now_s: float, *, opens: bool) -> None:
        """Check that a host may open a session, and a run with it."""
        used = self._hosts[host]
        if job_id not in used.jobs and len(used.jobs) >= limits.JOBS_PER_HOST_MAX:
            self._refuse(host, Limit.JOBS_PER_HOST, limits.JOBS_PER_HOST_MAX, RETRY_S, now_s)
        per_minute, at_once = limits.SESSIONS_PER_MINUTE_MAX, limits.SESSIONS_AT_ONCE_MAX
        wait_s = _wait_s(used.sessions, per_minute, at_once, now_s)
        if wait_s > 0:
            self._refuse(host, Limit.SESSIONS_PER_HOST, per_minute, max(RETRY_S, wait_s), now_s)
        per_minute, at_once = limits.NEW_RUNS_PER_MINUTE_MAX, limits.NEW_RUNS_AT_ONCE_MAX
        wait_s = _wait_s(used.runs, per_minute, at_once, now_s)
        if opens and wait_s > 0:
            self._refuse(host, Limit.NEW_RUNS_PER_HOST, per_minute, max(RETRY_S, wait_s), now_s)

    def _require_holder(self, stream: Stream, job_id: JobId, now_s: float) -> None:
        """Check that agents with a token may be in one more job."""
        jobs = self._holders.get(stream.holder, ())
        if job_id not in jobs and len(jobs) >= limits.JOBS_PER_TOKEN_MAX:
            most, limit = limits.JOBS_PER_TOKEN_MAX, Limit.JOBS_PER_TOKEN
            self._refuse(stream.hosts[-1], limit, most, RETRY_S, now_s)

    def _jobs_of(self, stream: Stream) -> list[Counter[JobId]]:
        """Return where the job of a stream counts."""
        found = [self._hosts[host].jobs for host in stream.hosts]
        if stream.holder:
            found.append(self._holders.setdefault(stream.holder, Counter()))
        return found

    def _forget_job(self, stream: Stream) -> None:
        """Note that a stream is in its job no more."""
        if stream.job_id is None:
            return
        for jobs in self._jobs_of(stream):
            jobs[stream.job_id] -= 1
            if not jobs[stream.job_id]:
                del jobs[stream.job_id]
        if stream.holder and not self._holders[stream.holder]:
            del self._holders[stream.holder]

    def refund(self, stream: Stream) -> None:
        """Give back what a new session has cost that was refused only for now, and will try again.

        Agents that wait for the end of an earlier run must not use up what their host may open.
        """
        self._charge(stream, -1)
        stream.has_paid, stream.runs = False, 0.0

    def _charge(self, stream: Stream, count: int) -> None:
        """Let the hosts of a stream pay for it so many times."""
        for host in stream.hosts:
            used = self._hosts[host]
            used.sessions.left -= count * stream.has_paid
            used.runs.left -= count * stream.runs

    def _find(self, host: str, now_s: float) -> _Host:
        """Return what a host uses."""
        used = self._hosts.get(host) or self._idle.pop(host, None)
        if used is None:
            used = _Host()
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


def _wait_s(allowance: Allowance, per_minute: float, most: float, now_s: float) -> float:
    """Return how long to wait for one more, in seconds; 0 or less: there is one."""
    return (1 - allowance.count(now_s, per_minute / 60, most)) * 60 / per_minute


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(unquote(text).strip("[]").partition("%")[0])
    except ValueError:
        return None


@lru_cache(maxsize=HOSTS_SHOWN_MAX)
def _show_address(text: str) -> str:
    """Return an address as the name of its host."""
    address = _parse_address(text)
    if address is None:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, PREFIX_BITS), strict=False))


def is_peer(text: str) -> bool:
    """Return whether a text, which a relay has sent, is a peer as gRPC names it."""
    kind, _, rest = text.partition(":")
    if len(text) > PEER_CHARS_MAX or not _PEER.fullmatch(text):
        return False
    return kind == "unix" or _parse_address(rest.rpartition(":")[0]) is not None


def name_by(relay: str, named: str) -> str:
    """Return a peer that a relay has named, so that everyone sees who says so; both are peers."""
    return f"{named}{VIA}{relay}"


def host_of(peer: str) -> str:
    """Return the host of a gRPC peer such as ipv4:10.0.0.1:4711 or ipv6:%5B::1%5D:4711.

    A peer that a relay has named, together with the relay, is one more host.
    """
    named, via, relay = peer.partition(VIA)
    if via:
        return f"{host_of(named)}{VIA}{host_of(relay)}"
    kind, _, rest = peer.partition(":")
    return _show_address(rest.rpartition(":")[0]) if kind in ("ipv4", "ipv6") else peer


def hosts_of(peer: str) -> tuple[str, ...]:
    """Return the hosts that a peer counts for: its own, and that of the relay that has named it."""
    return tuple(dict.fromkeys((host_of(peer), connected_host(peer))))


def connected_host(peer: str) -> str:
    """Return the host that is connected: that of the relay, if one has named the peer."""
    named, _, relay = peer.partition(VIA)
    return host_of(relay or named)
