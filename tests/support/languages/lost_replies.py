"""A coordinator whose first reply to every method is lost: the call counts, and is UNAVAILABLE."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from rallypoint.wire.channel import client_options


class LostReplies(grpc.GenericRpcHandler):
    """Forwards unary calls to a coordinator."""

    def __init__(self, target: str) -> None:
        """Start to listen on a free port of the loopback interface."""
        self.requests: list[tuple[str, bytes]] = []
        """Method and message of every attempt, in order."""
        self._channel = grpc.insecure_channel(target, options=client_options())
        self._server = grpc.server(ThreadPoolExecutor())
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of any method."""
        method: str = handler_call_details.method
        metadata = [
            (key, value)
            for key, value in handler_call_details.invocation_metadata
            if key.startswith("rallypoint-")
        ]

        def forward(request: bytes, context: grpc.ServicerContext) -> bytes:
            is_first = all(method != earlier for earlier, _ in self.requests)
            self.requests.append((method, request))
            call: Any = self._channel.unary_unary(method)
            reply: bytes = call(request, metadata=metadata, timeout=context.time_remaining())
            if is_first:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
            return reply

        return grpc.unary_unary_rpc_method_handler(forward)

    def attempts(self, name: str) -> list[bytes]:
        """Return the messages of all calls of a method."""
        return [request for method, request in self.requests if method.endswith(f"/{name}")]
