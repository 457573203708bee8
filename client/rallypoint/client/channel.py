"""Where a client connects, and how its channels behave.

A channel notices a dead connection, and reconnects soon. A client that knows several coordinators
need not wait for one of them: it gives up a silent one earlier, and calls the next.

A channel keeps the certificates with which it was opened. When they are renewed, new calls get a
new channel. The old one is closed when its last call has ended and lets go of it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.base.addresses import parse_endpoints
from rallypoint.client.errors import ClientClosed
from rallypoint.client.failures import Failure, read_failure
from rallypoint.wire.access import Access, from_environment
from rallypoint.wire.channel import Options, client_options
from rallypoint.wire.credentials import WORKER_TOKEN_KEY, Credentials, Metadata
from rallypoint.wire.handshakes import explain, is_closed, probe
from rallypoint.wire.loading import claim_grpc
from rallypoint.wire.local_token import with_local_token
from rallypoint.wire.resolved import Resolved, has_name

KEEPALIVE_S = 10
KEEPALIVE_TIMEOUT_S = 5
"""A host that vanishes without a word is noticed after the sum of both."""
CONNECT_S_MAX = 2
RECONNECT_S_MAX = 2
SHARED_KEEPALIVE_S = 2
SHARED_KEEPALIVE_TIMEOUT_S = 2
SHARED_CONNECT_S_MAX = 1
"""The same for one of several coordinators."""

GREET_S_MAX = 1.0
"""How long a client waits for the first answer of a coordinator before it makes the first call."""

Channel = TypeVar("Channel")
DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
"""How a call ends whose token is refused."""


class Line(Struct, Generic[Channel], weakref=True, eq=False):
    """A channel, and the methods that were called on it. It lives as long as a call has it."""

    channel: Channel
    methods: dict[tuple[str, bool], Any]

    def method(self, method: Any, *, is_stream: bool = False) -> Any:
        """Return what calls a `Method` of the contract."""
        key = (method.path, is_stream)
        found = self.methods.get(key)
        if found is None:
            channel: Any = self.channel
            make = channel.unary_stream if is_stream else channel.unary_unary
            found = self.methods[key] = make(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        return found


class Stream(Struct, Generic[Channel], frozen=True):
    """A call that brings many answers."""

    line: Line[Channel]
    """It lives as long as the call."""
    target: str
    """host:port of the coordinator."""
    metadata: Metadata
    """What it was begun with."""
    call: Any


class Connections(Generic[Channel]):
    """The line to each coordinator, and what every call shows of the client. Threads may share it.

    Both forms of the client have it: they differ in the channels, and in how they wait.
    """

    def __init__(
        self,
        target: str,
        token: str,
        access: Access | None,
        open_channel: Callable[[Credentials, Resolved, Options], Channel],
        close: Callable[[Channel], None] | None = None,
    ) -> None:
        """Begin without a connection.

        Args:
            target: host:port of the coordinator, or of several with commas in between.
            token: of the worker; empty: none.
            access: how to prove who the client is; None: as the environment says.
            open_channel: opens a channel.
            close: closes one that no call uses any more; None: a channel does that itself.

        Raises:
            ValueError: an address, a variable or a file is of no use.
        """
        self.targets = read_targets(target)
        self.is_shared = len(self.targets) > 1
        if access is None:
            access = from_environment(os.environ)
            # A worker's token is enough for what workers do.
            access = access if token else with_local_token(access, target)
        self.access = access
        self._credentials = Credentials(self.access)
        self._token_metadata = token_metadata(token)
        self._open_channel = open_channel
        self._close = close
        self._version = self._credentials.version
        self._lock = threading.Lock()
        """For lines that are made."""
        self._current: dict[str, Line[Channel]] = {}
        self._all: weakref.WeakSet[Line[Channel]] = weakref.WeakSet()
        self._reached: set[str] = set()

    def find(self, target: str) -> Line[Channel] | None:
        """Return the line for a new call to host:port; None: it has to be opened."""
        line = self._current.get(target)
        return line if self._credentials.version == self._version else None

    def open(self, at: Resolved) -> Line[Channel]:
        """Return the line for a new call, a new one if no other thread has opened one meanwhile.

        Raises:
            ClientClosed: this process is a fork in which gRPC cannot work.
        """
        with self._lock:
            if self._credentials.version != self._version:
                self._version = self._credentials.version
                self._current = {}
            line = self._current.get(at.target)
            if line is None:
                line = self._current[at.target] = self._open(at)
            return line

    def waits_for_connection(self, target: str) -> bool:
        """Return whether an attempt begins when there is a connection, however long that takes.

        A name may get another address meanwhile, and another coordinator may answer.
        """
        return not self.is_shared and not has_name(target)

    def drop_if_lost(self, failure: Failure, target: str, line: Line[Channel]) -> None:
        """Use a channel no more that has lost its connection, or found none."""
        if failure.code is grpc.StatusCode.UNAVAILABLE and not failure.details.reason:
            self.drop(target, line)

    def drop(self, target: str, line: Line[Channel]) -> None:
        """Let the next call open another channel than this one."""
        with self._lock:
            if self._current.get(target) is line:
                del self._current[target]

    def _open(self, at: Resolved) -> Line[Channel]:
        if not claim_grpc():
            raise ClientClosed(
                "this process was forked from one that uses gRPC, which cannot work here: "
                "start it by spawn or forkserver"
            )
        options = channel_options(is_shared=self.is_shared)
        line = Line(self._open_channel(self._credentials, at, options), {})
        self._all.add(line)
        if self._close is not None:
            weakref.finalize(line, self._close, line.channel).atexit = False
        return line

    def channels(self) -> list[Channel]:
        """Return all channels that are open."""
        with self._lock:
            return [line.channel for line in self._all]

    def metadata(self) -> Metadata:
        """Return the metadata of the next call."""
        return (*self._token_metadata, *self._credentials.metadata())

    @property
    def is_due(self) -> bool:
        """Return whether `look` would look at the files."""
        return self._credentials.is_due

    def look(self) -> None:
        """Let renewed files count from the next call on; it may wait for the file system."""
        self._credentials.look()

    def has_newer(self, failure: Failure, metadata: Metadata) -> bool:
        """Return whether a call was refused that had this metadata, and there is a newer token.

        It may wait for the file system.
        """
        if failure.code not in DENIED:
            return False
        self._credentials.look_now()
        return self.metadata() != metadata

    def reached(self, target: str) -> None:
        """Note an answer of a coordinator."""
        self._reached.add(target)

    def is_new(self, target: str) -> bool:
        """Return whether TLS may keep the client from its only coordinator: it never answered.

        A call that waits for a connection would not notice that.
        """
        return not self.is_shared and target not in self._reached

    def read(self, error: Any, target: str) -> Failure:
        """Return how a call to a coordinator failed; `error` is a grpc.RpcError."""
        failure = read_failure(error)
        if failure.code is not grpc.StatusCode.UNAVAILABLE:
            return failure
        return self._explained(failure, target, explain(failure.text, target, self.access))

    def is_unclear(self, failure: Failure, target: str) -> bool:
        """Return whether `look_into` may find more about a failure."""
        return (
            failure.code is grpc.StatusCode.UNAVAILABLE
            and target not in self._reached
            and is_closed(failure.text)
        )

    def look_into(self, failure: Failure, target: str) -> Failure:
        """Return a failure with a better text. It waits for the network."""
        return self._explained(failure, target, probe(target, self.access))

    def _explained(self, failure: Failure, target: str, why: str) -> Failure:
        if not why:
            return failure
        is_final = self.is_new(target)
        text = f"coordinator at {target}: {why}" if is_final else why
        return replace(failure, text=text, is_final=is_final)


def read_targets(text: str) -> tuple[str, ...]:
    """Return the addresses that a caller has given: one, or several with commas in between.

    Raises:
        ValueError: one of several is not `host[:port]`.
    """
    try:
        return tuple(parse_endpoints(text).split(","))
    except ValueError:
        if "," in text:
            raise
        return (text,)  # whatever else gRPC can connect to


def channel_options(*, is_shared: bool) -> Options:
    """Return the options of a client's channel; `is_shared`: there are other coordinators."""
    interval_s = SHARED_KEEPALIVE_S if is_shared else KEEPALIVE_S
    timeout_s = SHARED_KEEPALIVE_TIMEOUT_S if is_shared else KEEPALIVE_TIMEOUT_S
    connect_s = SHARED_CONNECT_S_MAX if is_shared else CONNECT_S_MAX
    return [
        *client_options(),
        ("grpc.keepalive_time_ms", interval_s * 1000),
        ("grpc.keepalive_timeout_ms", timeout_s * 1000),
        ("grpc.http2.ping_timeout_ms", timeout_s * 1000),  # gRPC waits a minute without it
        ("grpc.http2.max_pings_without_data", 0),  # as long as a call waits
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", connect_s * 1000),  # how long to try to connect
        ("grpc.max_reconnect_backoff_ms", RECONNECT_S_MAX * 1000),
    ]


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a worker's calls; `token` may be empty."""
    return ((WORKER_TOKEN_KEY, token),) if token else ()
