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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from urllib.parse import unquote

from msgspec import Struct

from rallypoint.server.access.usage.lines import Lines
from rallypoint.server.access.usage.quotas import HostLimit, HostQuota, HostRate
from rallypoint.server.contract import limits
from rallypoint.server.core.messages.refusals import Limit
from rallypoint.server.core.model.ids import JobId

PREFIX_BITS = 64
"""The part of an IPv6 address that counts as one host."""
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


class _Tallies:
    """How often each of several things belongs to a key, such as a job to a host."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def of(self, key: str) -> Mapping[str, int]:
        """Return how often each thing belongs to a key, once or more."""
        return self._counts.get(key, _NONE)

    def add(self, key: str, thing: str) -> None:
        self._counts.setdefault(key, Counter())[thing] += 1

    def remove(self, key: str, thing: str) -> None:
        counts = self._counts[key]
        counts[thing] -= 1
        if not counts[thing]:
            del counts[thing]
        if not counts:
            del self._counts[key]


_NONE: Mapping[str, int] = {}


class Peers:
    """What every host uses."""

    def __init__(self, lines: Lines | None = None) -> None:
        """Start without streams; `lines` counts lines of the log, None: of these hosts alone."""
        self.lines = lines or Lines(time.monotonic)
        self._streams = HostQuota(
            Limit.STREAMS_PER_HOST, "STREAMS_PER_HOST_MAX", limits.RETRY_S, warns=True
        )
        self._sessions = HostRate(
            Limit.SESSIONS_PER_HOST, "SESSIONS_PER_MINUTE_MAX", "SESSIONS_AT_ONCE_MAX"
        )
        self._runs = HostRate(
            Limit.NEW_RUNS_PER_HOST, "NEW_RUNS_PER_MINUTE_MAX", "NEW_RUNS_AT_ONCE_MAX"
        )
        self._jobs_of_hosts, self._jobs_of_tokens = _Tallies(), _Tallies()
        """The streams in each job."""
        self._of_host = HostLimit(Limit.JOBS_PER_HOST, "JOBS_PER_HOST_MAX", limits.RETRY_S)
        self._of_token = HostLimit(Limit.JOBS_PER_TOKEN, "JOBS_PER_TOKEN_MAX", limits.RETRY_S)
        self._carried = _Tallies()
        """The hosts of agents that relays carry, by the host of the relay."""

    @contextmanager
    def carried(self, relay: str, host: str) -> Iterator[None]:
        """Note that a relay carries an agent while the context is open; both are hosts."""
        self._carried.add(relay, host)
        try:
            yield
        finally:
            self._carried.remove(relay, host)

    def is_relay(self, peer: str) -> bool:
        """Return whether a relay on the host of this peer carries agents."""
        return bool(self._carried.of(host_of(peer)))

    def find_caller(self, peer: str, relayed: str) -> str:
        """Return the peer whose host counts for a call.

        A relay says for whom it makes a call, and is believed if it carries an agent of that host.
        So no one has more room in the limits than its agents give it.

        Args:
            peer: that has made the call.
            relayed: for whom a relay has made it, as the call says; empty: no one.
        """
        is_known = is_peer(relayed) and host_of(relayed) in self._carried.of(host_of(peer))
        return name_by(peer, relayed) if is_known else peer

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
                counted.enter_context(self._streams.taking(host, now_s))
            try:
                yield stream
            finally:
                if stream.job_id is not None:
                    for jobs, key in self._jobs_of(stream):
                        jobs.remove(key, stream.job_id)

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
            if any(job_id in self._jobs_of_hosts.of(host) for host in stream.hosts):
                runs = 0.0
            for host in stream.hosts:
                _require_job(self._of_host, self._jobs_of_hosts.of(host), job_id, host, now_s)
                self._sessions.require(host, now_s)
                if runs > 0:
                    self._runs.require(host, now_s)
            jobs = self._jobs_of_tokens.of(stream.holder)
            _require_job(self._of_token, jobs, job_id, stream.hosts[-1], now_s)
            stream.has_paid, stream.runs = True, runs
            for host in stream.hosts:
                self._sessions.count(host, now_s)
                self._runs.count(host, now_s, runs)
        stream.job_id = job_id
        for tallies, key in self._jobs_of(stream):
            tallies.add(key, job_id)

    def _jobs_of(self, stream: Stream) -> list[tuple[_Tallies, str]]:
        """Return where the job of a stream counts."""
        found = [(self._jobs_of_hosts, host) for host in stream.hosts]
        return [*found, (self._jobs_of_tokens, stream.holder)] if stream.holder else found

    def refund(self, stream: Stream) -> None:
        """Give back what a new session has cost that was refused only for now, and will try again.

        Agents that wait for the end of an earlier run must not use up what their host may open.
        """
        for host in stream.hosts:
            self._sessions.give_back(host, stream.has_paid)
            self._runs.give_back(host, stream.runs)
        stream.has_paid, stream.runs = False, 0.0


def _require_job(
    limit: HostLimit, jobs: Mapping[str, int], job_id: JobId, host: str, now_s: float
) -> None:
    """Check that there may be one more job."""
    if job_id not in jobs and len(jobs) >= limit.most:
        limit.refuse(host, now_s)


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
