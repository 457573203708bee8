"""What a real etcd answers when it cannot do what was asked: an error with one line each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from rallypoint.server.etcd.address import EtcdAddress
from rallypoint.server.etcd.client import EtcdClient
from rallypoint.server.etcd.errors import (
    EtcdCompacted,
    EtcdError,
    EtcdLeaseGone,
    EtcdOtherCluster,
    EtcdOutOfSpace,
    EtcdRefusedUser,
    EtcdTimedOut,
    EtcdTokenExpired,
    EtcdTooLarge,
    EtcdUnreachable,
    to_error,
)
from rallypoint.server.etcd.values import Put
from support.etcd.clients import Connect
from support.etcd.cluster import Cluster, pick_ports, running

MIB = 1024 * 1024
TLS = Path(__file__).parents[3] / "support/etcd/tls"


@pytest.fixture(scope="module")
def small_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("etcd"), 1, f"--quota-backend-bytes={4 * MIB}") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def guarded_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With users, TLS, and tokens that end after a second without use."""
    folder = tmp_path_factory.mktemp("etcd")
    flags = (
        "--auth-token-ttl=1",
        "--client-cert-auth",
        *(f"--trusted-ca-file={TLS / 'ca.pem'}", f"--cert-file={TLS / 'member.pem'}"),
        f"--key-file={TLS / 'member.key'}",
    )
    with running(folder, 1, *flags, scheme="https") as cluster:
        extra = [
            *(f"--cacert={TLS / 'ca.pem'}", f"--cert={TLS / 'client.pem'}"),
            f"--key={TLS / 'client.key'}",
        ]
        for words in (
            "user add root:secret",
            "user grant-role root root",
            "user add few:secret",
            "auth enable",
        ):
            cluster.control(*words.split(), extra=extra)
        yield cluster


def guarded(
    cluster: Cluster, folder: Path, user: str | None, password: str = "secret"
) -> EtcdClient:
    file = folder / "password"
    file.write_text(password + "\n")
    return EtcdClient(
        EtcdAddress(
            cluster.endpoints,
            "/p",
            ca=TLS / "ca.pem",
            cert=TLS / "client.pem",
            key=TLS / "client.key",
            user=user,
            password_file=file if user else None,
        )
    )


async def test_sizes_that_etcd_refuses(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """1.5 MiB for a request, and 128 operations for a transaction."""
    client = connect(etcd)
    key = prefix.encode()

    await client.transact([], [Put(key, bytes(int(1.4 * MIB)))])
    for size in (int(1.6 * MIB), 3 * MIB):
        with pytest.raises(EtcdTooLarge, match="max-request-bytes"):
            await client.transact([], [Put(key, bytes(size))])
    with pytest.raises(EtcdTooLarge, match="max-txn-ops"):
        await client.transact([], [Put(key + b"%d" % number, b"") for number in range(129)])


async def test_what_is_gone(etcd: Cluster, connect: Connect, prefix: str) -> None:
    """A lease that has ended, and a revision that was compacted away."""
    client = connect(etcd)
    lease = (await client.grant(60)).lease
    await client.revoke(lease)
    first = await client.transact([], [Put(prefix.encode(), b"")])
    last = await client.transact([], [Put(prefix.encode(), b"")])
    etcd.control("compact", str(last.revision))

    assert (await client.keep_alive(lease)).ttl_s == 0
    with pytest.raises(EtcdLeaseGone):
        await client.revoke(lease)
    with pytest.raises(EtcdLeaseGone):
        await client.transact([], [Put(prefix.encode(), b"", lease)])
    with pytest.raises(EtcdCompacted):
        await client.range(prefix.encode(), revision=first.revision)


async def test_full_database_still_answers_reads(
    small_etcd: Cluster, connect: Connect, prefix: str
) -> None:
    """The line says what to do; once that is done, etcd takes changes again."""
    client = connect(small_etcd)
    key = prefix.encode()
    with pytest.raises(EtcdOutOfSpace, match=r"alarm disarm.* quota"):
        for _ in range(64):  # etcd notices a tenth of a second later
            await client.transact([], [Put(key, bytes(MIB))])
    with pytest.raises(EtcdOutOfSpace):
        await client.transact([], [Put(key, b"small")])

    found = await client.range(key)
    assert MIB == len(found.found[0].value)

    small_etcd.control("compact", str(found.revision))
    small_etcd.control("defrag")
    small_etcd.control("alarm", "disarm")
    assert (await client.transact([], [Put(key, b"small")])).is_done


@pytest.mark.parametrize(
    ("user", "password", "part"),
    [
        (None, "", "grants the user too little"),
        ("root", "wrong", "user or password"),
        ("unknown", "secret", "user or password"),
        ("few", "secret", "grants the user too little"),
    ],
)
async def test_wrong_user_is_refused(
    guarded_etcd: Cluster, tmp_path: Path, user: str | None, password: str, part: str
) -> None:
    client = guarded(guarded_etcd, tmp_path, user, password)
    try:
        with pytest.raises(EtcdRefusedUser, match=part):
            await client.get(b"/p/key")
    finally:
        await client.close()


async def test_token_is_renewed(guarded_etcd: Cluster, tmp_path: Path) -> None:
    """An expired or invalid token costs one more call; TLS checks the server's certificate."""
    client = guarded(guarded_etcd, tmp_path, "root")
    try:
        await client.transact([], [Put(b"/p/key", b"1")])
        client._token = "ended.1"
        found = await client.get(b"/p/key")
        await client.keep_alive((await client.grant(5)).lease)
    finally:
        await client.close()

    assert found is not None and found.value == b"1"
    assert client._token not in (None, "ended.1")


async def test_client_without_certificate_is_refused(guarded_etcd: Cluster) -> None:
    client = EtcdClient(EtcdAddress(guarded_etcd.endpoints, "/p", ca=TLS / "member.pem"))
    try:
        with pytest.raises(EtcdUnreachable, match="do not trust each other"):
            await client.get(b"/p/key", limit_s=0.3)
    finally:
        await client.close()


async def test_user_of_an_etcd_without_users_is_refused(etcd: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    client = EtcdClient(EtcdAddress(etcd.endpoints, "/p", user="root", password_file=file))
    try:
        with pytest.raises(EtcdRefusedUser, match="no users"):
            await client.get(b"/p/key")
    finally:
        await client.close()


async def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EtcdError, match=r"cannot read .*/absent for etcd: No such file"):
        EtcdClient(EtcdAddress(("127.0.0.1:1",), "/p", ca=tmp_path / "absent"))


async def test_no_endpoint_answers() -> None:
    """Refused connections end at the limit of the call, with a line that names the endpoint."""
    (port,) = pick_ports(1)
    client = EtcdClient(EtcdAddress((f"127.0.0.1:{port}",), "/p"))
    try:
        with pytest.raises(EtcdUnreachable, match=f"127.0.0.1:{port} cannot be reached"):
            await client.get(b"/p/key", limit_s=0.3)
    finally:
        await client.close()


async def test_endpoint_of_another_cluster_is_noticed(
    etcd: Cluster, small_etcd: Cluster, connect: Connect
) -> None:
    """A mixture of two clusters could lose everything that is written."""
    client = EtcdClient(EtcdAddress((*etcd.endpoints, *small_etcd.endpoints), "/p"))
    try:
        await client.get(b"/p/key")
        client.endpoints.leave(client.endpoints.current)
        with pytest.raises(EtcdOtherCluster, match="another cluster"):
            await client.get(b"/p/key")
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", EtcdTokenExpired),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", EtcdTimedOut),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", EtcdTimedOut),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped", EtcdUnreachable),
        (grpc.StatusCode.DATA_LOSS, "etcdserver: corrupt cluster", EtcdError),
        (grpc.StatusCode.OUT_OF_RANGE, "something\nelse", EtcdError),
    ],
)
def test_texts_that_no_test_can_provoke(
    code: grpc.StatusCode, text: str, kind: type[EtcdError]
) -> None:
    error = to_error(code, text, "h:1")

    assert kind is type(error)
    assert "\n" not in str(error)


async def test_password_in_clear_is_logged() -> None:
    """The operator learns it when the coordinator starts; the file is not read for it."""
    address = EtcdAddress(("h:2379",), "/p", user="root", password_file=Path("absent"))
    with capture_logs() as lines:
        client = EtcdClient(address)
    await client.close()

    assert [("unencrypted", "warning")] == [(one["event"], one["log_level"]) for one in lines]
