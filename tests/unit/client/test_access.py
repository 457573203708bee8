"""How both forms of the client prove who they are, and what they do when that changes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.status_pb2 import Status

from rallypoint.client import AsyncClient, Client, aio_transport, errors
from rallypoint.client.attempts import LIMIT_S
from rallypoint.client.channel import Connections
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.wire import credentials as credentials_module
from rallypoint.wire.access import PLAIN, Access
from rallypoint.wire.credentials import Credentials
from rallypoint.wire.handshakes import explain, is_closed
from rallypoint.wire.resolved import Resolved
from support.access.authority import Authority
from support.access.greeters import greeting
from support.clients.scripted import Script

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])
ANSWER = coordinator_pb2.GetCoordinatorResponse()
UNKNOWN = Status(code=grpc.StatusCode.UNAUTHENTICATED.value[0], message="an unknown token")
HOST = "127.0.0.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


class Form:
    """A client, called from a test of asyncio."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def ask(self) -> Any:
        if isinstance(self._client, AsyncClient):
            return await self._client.get_coordinator()
        return await asyncio.to_thread(self._client.get_coordinator)


@asynccontextmanager
async def form_of(form: str, port: int, access: Access | None) -> AsyncIterator[Form]:
    kind: Any = AsyncClient if form == "aio" else Client
    client = kind(f"{HOST}:{port}", token="of a worker", access=access, limit_s=LIMIT_S)
    try:
        yield Form(client)
    finally:
        closed = client.close()
        if closed is not None:
            await closed


@FORMS
async def test_calls_carry_both_tokens(form: str, authority: Authority) -> None:
    """That of the caller, and that of the worker for which it calls; encrypted."""
    script = Script()
    script.answers["GetCoordinator"] = [ANSWER]
    with greeting(authority.issue("c", [HOST]), handler=script) as port:
        async with form_of(form, port, Access(ca_file=authority.ca, token="own")) as client:
            await client.ask()

    (metadata,) = script.metadata
    assert metadata["authorization"] == "Bearer own"
    assert metadata["rallypoint-worker-token"] == "of a worker"


@FORMS
async def test_environment_says_how(
    form: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the caller does not."""
    monkeypatch.setenv("RALLYPOINT_TLS_CA", authority.ca)
    monkeypatch.setenv("RALLYPOINT_TOKEN", "own")
    script = Script()
    script.answers["GetCoordinator"] = [ANSWER]
    with greeting(authority.issue("c", [HOST]), handler=script) as port:
        async with form_of(form, port, None) as client:
            await client.ask()
        async with form_of(form, port, PLAIN) as client:
            with pytest.raises(errors.HandshakeFailed, match="it uses TLS"):
                await client.ask()

    assert script.metadata[0]["authorization"] == "Bearer own"


@FORMS
async def test_token_that_was_just_replaced_refuses_no_caller(form: str, tmp_path: Path) -> None:
    """The coordinator may know it earlier than the client, which looks once a second."""
    file = tmp_path / "token"
    file.write_text("old")
    script = Script()
    script.answers["GetCoordinator"] = [ANSWER, UNKNOWN, ANSWER, UNKNOWN]
    with greeting(handler=script) as port:
        async with form_of(form, port, Access(token_file=str(file))) as client:
            await client.ask()
            fresh = tmp_path / "fresh"
            fresh.write_text("new")
            os.replace(fresh, file)
            await client.ask()
            with pytest.raises(errors.NotAllowed, match="an unknown token") as refused:
                await client.ask()

    tokens = [metadata["authorization"] for metadata in script.metadata]
    assert tokens[0] == "Bearer old"
    assert tokens[-2:] == ["Bearer new", "Bearer new"]
    assert refused.value.status == "UNAUTHENTICATED"
    assert len(tokens) in (3, 4)  # the second call may have looked by itself


@FORMS
def test_files_of_no_use_are_named_at_once(form: str) -> None:
    """As other wrong arguments."""
    kind: Any = AsyncClient if form == "aio" else Client
    with pytest.raises(ValueError, match="cannot read nowhere: No such file"):
        kind("head:1", access=Access(ca_file="nowhere"))


async def test_files_that_hang_stop_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with the asyncio client waits a moment for them, and goes out with the old token."""
    file = tmp_path / "token"
    file.write_text("old")
    monkeypatch.setattr(credentials_module, "LOOK_S", 0.0)
    monkeypatch.setattr(aio_transport, "READ_S_MAX", 0.1)
    threads, may_read, script = list[int](), threading.Event(), Script()

    def sign(paths: object) -> tuple[object, ...]:
        threads.append(threading.get_ident())
        may_read.wait(LIMIT_S)
        return ()

    script.answers["GetCoordinator"] = [ANSWER, UNKNOWN]
    with greeting(handler=script) as port:
        async with form_of("aio", port, Access(token_file=str(file))) as client:
            monkeypatch.setattr(credentials_module, "_sign", sign)
            try:
                await client.ask()
                with pytest.raises(errors.NotAllowed, match="an unknown token"):
                    await client.ask()
            finally:
                may_read.set()

    assert [one["authorization"] for one in script.metadata] == ["Bearer old"] * 2
    assert threads
    assert threading.get_ident() not in threads


class FakeChannel:
    """A channel that notes its end."""

    def __init__(self, closed: list[int], number: int) -> None:
        self.closed = closed
        self.number = number


def test_renewed_certificates_open_another_channel(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For new calls. The old one is closed when its last call has ended."""
    version, opened, closed = [1], list[int](), list[int]()
    monkeypatch.setattr(Credentials, "version", property(lambda self: version[0]))

    def open_channel(credentials: Credentials, at: Resolved, options: object) -> FakeChannel:
        opened.append(version[0])
        return FakeChannel(closed, version[0])

    connections = Connections[FakeChannel](
        "head:1", "", PLAIN, open_channel, lambda channel: closed.append(channel.number)
    )
    at = Resolved("head:1")
    call_on_old = connections.open(at)
    same = connections.find("head:1") is call_on_old
    version[0] = 2
    assert connections.find("head:1") is None
    new = connections.open(at)
    numbers = sorted(channel.number for channel in connections.channels())

    assert (same, opened, new.channel.number, closed) == (True, [1, 2], 2, [])
    assert numbers == [1, 2]

    del call_on_old

    assert closed == [1]
    assert [channel.number for channel in connections.channels()] == [2]


GRPC_TEXTS = [
    (
        "Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:100000f7:SSL routines:"
        "OPENSSL_internal:WRONG_VERSION_NUMBER: Invalid certificate verification context",
        "it does not use TLS",
    ),
    (
        "Ssl handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:"
        "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired",
        "its certificate has expired",
    ),
    (
        "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate is not yet valid",
        "check the clocks",
    ),
    (
        "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
        "check --tls-ca",
    ),
    ("OPENSSL_internal:BAD_SIGNATURE: certificate signature failure", "check --tls-ca"),
    (
        "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check "
        "failed.",
        "its certificate is not for ::7:",
    ),
    ("Ssl handshake failed: something new", "TLS handshake failed: something new"),
]


@pytest.mark.parametrize(("text", "meaning"), GRPC_TEXTS)
def test_text_of_grpc_is_explained(text: str, meaning: str) -> None:
    """These are what gRPC says."""
    assert meaning in explain(f"last error: UNKNOWN: ipv6:[::7]:1: {text}", "[::7]:1", Access())


def test_other_failures_are_left_alone() -> None:
    """A closed connection may have any reason."""
    refused = "Failed to connect to remote host: connect: Connection refused (111)"

    assert [explain(refused, "a:1", Access()), is_closed(refused)] == ["", False]
    assert [explain("Socket closed", "a:1", Access()), is_closed("Socket closed")] == ["", True]
