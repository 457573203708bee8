"""A gRPC server that answers as a test has written, and both forms of the client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status
from msgspec import Struct

from rallypoint.client import AsyncClient, Client
from rallypoint.client.attempts import CHECK
from rallypoint.wire.limits import SERVICES

LIMIT_S = 20.0

Answer = Any
"""A message, or a status that ends the call. For a stream a list of them; it waits for an event."""
BROKEN = Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message="Socket closed")


class Script(grpc.GenericRpcHandler):
    """The answers that are left, and the requests so far, by the name of the RPC."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = defaultdict(list)
        self.requests: dict[str, list[Any]] = defaultdict(list)
        self.metadata: list[dict[str, str]] = []
        self.checks = 0
        """Calls of the health check."""
        self._methods = {
            f"/{service.full_name}/{method.name}": method
            for service in SERVICES
            for method in service.methods
        }

    def service(self, details: Any) -> Any:
        if details.method == CHECK.path:
            self.checks += 1
            return grpc.unary_unary_rpc_method_handler(lambda _, __: b"")
        method = self._methods[details.method]
        self.metadata.append(dict(details.invocation_metadata))
        request_type = method.input_type._concrete_class
        make = grpc.unary_unary_rpc_method_handler
        serve: Callable[[Any, Any], Any] = self._answer
        if method.server_streaming:
            make, serve = grpc.unary_stream_rpc_method_handler, self._stream
        return make(
            lambda request, context: serve(request, context),
            request_deserializer=request_type.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )

    def _next(self, request: Any) -> Answer:
        name = type(request).__name__.removesuffix("Request")
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests[name].append(copy)
        return self.answers[name].pop(0)

    def _answer(self, request: Any, context: Any) -> Any:
        return _send(self._next(request), context)

    def _stream(self, request: Any, context: Any) -> Iterator[Any]:
        answers = self._next(request)
        assert isinstance(answers, list)
        for answer in answers:
            if isinstance(answer, threading.Event):
                answer.wait(LIMIT_S)
            else:
                yield _send(answer, context)


def _send(answer: Any, context: Any) -> Any:
    if isinstance(answer, Status):
        context.abort_with_status(rpc_status.to_status(answer))
    return answer


class Caller(Struct):
    """One form of the client, called from a test of asyncio."""

    script: Script
    client: Any
    target: str

    async def call(self, name: str, *args: Any, **fields: Any) -> Any:
        method = getattr(self.client, name)
        if isinstance(self.client, AsyncClient):
            return await method(*args, **fields)
        return await asyncio.to_thread(method, *args, **fields)

    async def list(self, name: str, *args: Any, **fields: Any) -> list[Any]:
        """Return all entries of a list, or all that a stream brings until it ends."""
        found = getattr(self.client, name)(*args, **fields)
        if isinstance(self.client, AsyncClient):
            return [item async for item in found]
        return await asyncio.to_thread(list, found)


@asynccontextmanager
async def calling(form: str, *, limit_s: float = LIMIT_S, epoch: int = 7) -> AsyncIterator[Caller]:
    """Serve a script to a client while the context is open; `form` is "sync" or "aio"."""
    script = Script()
    with ThreadPoolExecutor(8) as threads:
        server = grpc.server(threads, handlers=[script])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        target = f"127.0.0.1:{port}"
        try:
            async with contextlib.AsyncExitStack() as stack:
                client: Any
                if form == "aio":
                    client = AsyncClient(target, token="secret", epoch=epoch, limit_s=limit_s)
                    await stack.enter_async_context(client)
                else:
                    client = Client(target, token="secret", epoch=epoch, limit_s=limit_s)
                    stack.enter_context(client)
                yield Caller(script, client, target)
        finally:
            server.stop(None).wait(LIMIT_S)
