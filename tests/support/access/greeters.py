"""A server that answers with what a client has shown of itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from support.access.authority import Pair

METHOD = "/test.Greeter/Greet"


class _Greeter(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        metadata = dict(details.invocation_metadata or ())

        def greet(request: bytes, context: grpc.ServicerContext) -> bytes:
            names: Any = context.auth_context().get("x509_common_name", [b""])
            return bytes(names[0]) + b"|" + str(metadata.get("authorization", "")).encode()

        return grpc.unary_unary_rpc_method_handler(greet)


@contextmanager
def greeting(
    pair: Pair | None = None,
    client_ca: str = "",
    handler: grpc.GenericRpcHandler | None = None,
    at: str = "127.0.0.1:0",
) -> Iterator[int]:
    """Yield the port of a server.

    Args:
        pair: its certificate, looked at for each handshake; None: no TLS.
        client_ca: authority that clients need a certificate of; empty: they need none.
        handler: answers; None: with what the client has shown.
        at: host:port.
    """
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[handler or _Greeter()])
        if pair is None:
            port = server.add_insecure_port(at)
        else:
            credentials = grpc.dynamic_ssl_server_credentials(
                _configuration(pair, client_ca),
                lambda: _configuration(pair, client_ca),
                require_client_authentication=bool(client_ca),
            )
            port = server.add_secure_port(at, credentials)
        server.start()
        try:
            yield port
        finally:
            server.stop(None).wait()


def _configuration(pair: Pair, client_ca: str) -> grpc.ServerCertificateConfiguration:
    both = [(Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())]
    authorities = Path(client_ca).read_bytes() if client_ca else None
    return grpc.ssl_server_certificate_configuration(both, authorities)
