"""The least that a coordinator could cost: a grpc.aio server that only counts and answers bytes.

Every client sends a first message and gets one back; when all have come, all get another one (the
round). A message that begins with `!` (a failure) sends one to all (the stop); when all have
answered that, all get the round again. Sizes are given on the command line; nothing is parsed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

METHOD = "/floor.Floor/Session"


@dataclass(slots=True)
class Floor:
    """Counts messages and answers with bytes of the right sizes."""

    nodes: int
    welcome: bytes
    run: bytes
    stop: bytes
    arrived: int = 0
    queues: list[asyncio.Queue[bytes]] = field(default_factory=list)

    async def session(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        """Carry one client."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queues.append(queue)
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write(queue, context))
            queue.put_nowait(self.welcome)
            async for message in requests:
                self._take(message)
            writer.cancel()
        self.queues.remove(queue)

    def _take(self, message: bytes) -> None:
        if message[:1] == b"!":
            self._send_all(self.stop)
        elif message[:1] in (b"H", b"R"):
            self.arrived += 1
            if self.arrived == self.nodes:
                self.arrived = 0
                self._send_all(self.run)

    def _send_all(self, message: bytes) -> None:
        for queue in self.queues:
            queue.put_nowait(message)

    @staticmethod
    async def _write(
        queue: asyncio.Queue[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        while True:
            await context.write(await queue.get())


async def main() -> None:
    """Serve until killed."""
    nodes, welcome, run, stop = (int(word) for word in sys.argv[1:5])
    floor = Floor(nodes, b"W" * welcome, b"G" * run, b"S" * stop)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    handler: Any = grpc.stream_stream_rpc_method_handler(floor.session)
    handlers = grpc.method_handlers_generic_handler("floor.Floor", {"Session": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
