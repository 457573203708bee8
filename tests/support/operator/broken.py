"""Broken set-ups for `rallypoint doctor`, each a context with the options that lead there.

Paths in the options are relative to the folder of the set-up, in which the command runs.

The coordinators are servers of this process that answer one call: what is wrong with them can be
chosen, down to their clocks.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import grpc
from grpc_status import rpc_status

from rallypoint.base.limits import PROTOCOL_VERSION, PROTOCOL_VERSION_MIN
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.errors import pack_status
from support.access.authority import Authority, Pair

HOST = "127.0.0.1"
TOKEN = "secret-of-this-test"
Options = list[str]
SetUp = Callable[[Path], AbstractContextManager[Options]]


class _Coordinator(coordinator_grpc.CoordinatorServiceServicer):
    def __init__(self, ahead_s: float, token: str) -> None:
        self._ahead_s = ahead_s
        self._token = token

    def GetCoordinator(
        self, request: coordinator_pb2.GetCoordinatorRequest, context: grpc.ServicerContext
    ) -> coordinator_pb2.GetCoordinatorResponse:
        shown = dict(context.invocation_metadata() or ()).get("authorization", "")
        if self._token and shown != f"Bearer {self._token}":
            reason = "INVALID" if shown else "MISSING"
            value = details_pb2.RefusalReason.Value(f"REFUSAL_REASON_ACCESS_TOKEN_{reason}")
            code = grpc.StatusCode.UNAUTHENTICATED
            context.abort_with_status(
                rpc_status.to_status(pack_status(code, "", None, reason=value))
            )
        answer = coordinator_pb2.GetCoordinatorResponse()
        one = answer.coordinator
        one.version, one.durable = "0.1.0", True
        one.min_protocol_version, one.protocol_version = PROTOCOL_VERSION_MIN, PROTOCOL_VERSION
        one.started_at.FromDatetime(datetime.now(UTC) + timedelta(seconds=self._ahead_s))
        if self._token:
            one.access.authenticates = True
            answer.caller.name = "ops"
            answer.caller.proof = coordinator_pb2.CALLER_PROOF_ACCESS_TOKEN
            answer.caller.roles.append(coordinator_pb2.ACCESS_ROLE_OPERATOR)
        return answer


@contextmanager
def coordinator(
    *, pair: Pair | None = None, client_ca: str = "", ahead_s: float = 0.0, token: str = ""
) -> Iterator[int]:
    """Yield the port of a coordinator.

    Args:
        pair: its certificate; None: it speaks without TLS.
        client_ca: authority of the certificates that it wants; empty: it wants none.
        ahead_s: how far its clock is ahead.
        token: that it wants; empty: none.
    """
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        servicer = _Coordinator(ahead_s, token)
        coordinator_grpc.add_CoordinatorServiceServicer_to_server(servicer, server)
        if pair is None:
            port = server.add_insecure_port(f"{HOST}:0")
        else:
            both = [(Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())]
            authorities = Path(client_ca).read_bytes() if client_ca else None
            wanted = grpc.ssl_server_credentials(both, authorities, bool(client_ca))
            port = server.add_secure_port(f"{HOST}:0", wanted)
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


@contextmanager
def listening(answer: bytes, port: int = 0) -> Iterator[int]:
    """Yield the port of another program, which answers each connection and hangs up."""
    with socket.create_server((HOST, port)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return  # it is shut down
                with connection, suppress(OSError):  # a client may hang up first
                    connection.sendall(answer)
                    connection.recv(1_024)

        thread = threading.Thread(target=serve, name="another program")
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def at(port: int) -> Options:
    """Return the options that name a coordinator of this host."""
    return ["-c", f"localhost:{port}"]


# --- The set-ups ---


@contextmanager
def well(folder: Path) -> Iterator[Options]:
    authority = Authority(folder)
    token = folder / "ops.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with coordinator(pair=authority.issue("head", ["localhost"], days=30), token=TOKEN) as port:
        yield [*at(port), "--tls-ca", "ca.pem", "--token-file", token.name]


@contextmanager
def wrong_name(folder: Path) -> Iterator[Options]:
    yield ["-c", "no-such-host.invalid:50051"]


@contextmanager
def nothing_listens(folder: Path) -> Iterator[Options]:
    with socket.create_server((HOST, 0)) as taken:  # no other process gets the port meanwhile
        port = taken.getsockname()[1]
        taken.shutdown(socket.SHUT_RDWR)  # it listens no more, and stays bound
        yield at(port)


@contextmanager
def other_program(folder: Path, answer: bytes = b"") -> Iterator[Options]:
    with listening(answer) as port:
        yield at(port)


@contextmanager
def tls_expected(folder: Path) -> Iterator[Options]:
    Authority(folder)
    with coordinator() as port:
        yield [*at(port), "--tls-ca", "ca.pem"]


@contextmanager
def tls_unexpected(folder: Path) -> Iterator[Options]:
    with coordinator(pair=Authority(folder).issue("head", ["localhost"])) as port:
        yield at(port)


@contextmanager
def foreign_authority(folder: Path) -> Iterator[Options]:
    Authority(folder / "ours", "our CA")
    theirs = Authority(folder / "theirs", "their CA")
    with coordinator(pair=theirs.issue("head", ["localhost"])) as port:
        yield [*at(port), "--tls-ca", "ours/ca.pem"]


@contextmanager
def expired_certificate(folder: Path) -> Iterator[Options]:
    authority = Authority(folder)
    with coordinator(pair=authority.issue("head", ["localhost"], days=-3)) as port:
        yield [*at(port), "--tls-ca", "ca.pem"]


@contextmanager
def other_host(folder: Path) -> Iterator[Options]:
    authority = Authority(folder)
    with coordinator(pair=authority.issue("head", ["head", "10.0.0.1"])) as port:
        yield [*at(port), "--tls-ca", "ca.pem"]


@contextmanager
def client_without_certificate(folder: Path) -> Iterator[Options]:
    authority = Authority(folder)
    pair = authority.issue("head", ["localhost"])
    with coordinator(pair=pair, client_ca=authority.ca) as port:
        yield [*at(port), "--tls-ca", "ca.pem"]


@contextmanager
def no_token(folder: Path) -> Iterator[Options]:
    with coordinator(token=TOKEN) as port:
        yield at(port)


@contextmanager
def wrong_token(folder: Path) -> Iterator[Options]:
    token = folder / "ops.token"
    token.write_text("of-another-coordinator")
    token.chmod(0o644)
    with coordinator(token=TOKEN) as port:
        yield [*at(port), "--token-file", token.name]


@contextmanager
def wrong_clock(folder: Path) -> Iterator[Options]:
    with coordinator(ahead_s=-600) as port:
        yield at(port)


@contextmanager
def few_files(folder: Path) -> Iterator[Options]:
    with coordinator() as port:
        yield at(port)


SET_UPS: dict[str, SetUp] = {
    "well": well,
    "wrong-name": wrong_name,
    "nothing-listens": nothing_listens,
    "web-server": partial(other_program, answer=b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "other-program": partial(other_program, answer=b"SSH-2.0-OpenSSH_9.2p1\r\n"),
    "tls-expected": tls_expected,
    "tls-unexpected": tls_unexpected,
    "foreign-authority": foreign_authority,
    "expired-certificate": expired_certificate,
    "other-host": other_host,
    "client-without-certificate": client_without_certificate,
    "no-token": no_token,
    "wrong-token": wrong_token,
    "wrong-clock": wrong_clock,
    "few-files": few_files,
}
FILES_LIMIT = {"few-files": 200}
"""Most open files of the command, where that is what is wrong."""
