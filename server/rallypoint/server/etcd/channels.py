"""A gRPC channel to each endpoint of etcd, and which one is used.

One channel over all endpoints would leave the choice to gRPC, which cannot see that a member is
suspended or has lost its leader: its connection is fine. So each endpoint has a channel, and what
fails there moves on to the next one. Host names, IPv6 and certificates work as for one host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
from aetcd import rpc

from rallypoint.server.etcd.address import EtcdAddress
from rallypoint.server.etcd.errors import EtcdError

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A page of a journal: 32 parts of at most 1 MiB, with room to spare."""
OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
    ("grpc.max_send_message_length", ANSWER_BYTES_MAX),
    # Calls and watches have limits. Keepalive frees connections to hosts that have gone; etcd
    # refuses a client that pings more often than every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # gRPC waits a minute without it
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Endpoint:
    """The channel to one member, with the stubs of etcd's services."""

    def __init__(self, name: str, credentials: grpc.ChannelCredentials | None) -> None:
        """Make the channel to `name`, a `host:port`; the first call connects it."""
        self.name = name
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(name, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(name, credentials, options=OPTIONS)
        self.keys = rpc.KVStub(self.channel)
        self.leases = rpc.LeaseStub(self.channel)
        self.watches = rpc.WatchStub(self.channel)
        self.users = rpc.AuthStub(self.channel)
        self.upkeep = rpc.MaintenanceStub(self.channel)


class Endpoints:
    """The endpoints in turn: one is used until a call to it fails."""

    def __init__(self, address: EtcdAddress) -> None:
        """Read the files of TLS. Needs a running event loop.

        Raises:
            EtcdError: when a file of TLS cannot be read.
        """
        credentials = _make_credentials(address)
        self._all = [Endpoint(name, credentials) for name in address.endpoints]
        self._at = 0

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    def __iter__(self) -> Iterator[Endpoint]:
        """Return all of them, in the order of the address."""
        return iter(self._all)

    @property
    def current(self) -> Endpoint:
        """The one to call."""
        return self._all[self._at]

    def leave(self, endpoint: Endpoint) -> None:
        """Move on to the next one, if `endpoint` is still the one in use."""
        if self.current is endpoint:
            self._at = (self._at + 1) % len(self._all)

    async def close(self) -> None:
        """Close every channel."""
        for endpoint in self._all:
            await endpoint.channel.close(None)


def _make_credentials(address: EtcdAddress) -> grpc.ChannelCredentials | None:
    if address.ca is None:
        return None
    return grpc.ssl_channel_credentials(
        root_certificates=read_file(address.ca),
        private_key=None if address.key is None else read_file(address.key),
        certificate_chain=None if address.cert is None else read_file(address.cert),
    )


def read_file(path: Path) -> bytes:
    """Return the content of a file that an address names.

    Raises:
        EtcdError: when it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise EtcdError(f"cannot read {path} for etcd: {error.strerror}") from error
