"""A floor for the coordinator's cost: a grpc.aio server that only counts messages and sends bytes.

It serves the same agents and answers with copies of what a real coordinator sent. So both ends
exchange the same number of messages of the same sizes, and the agents do the same work. The server
reads only the first byte of a message. It answers Hello with Welcome, and sends all agents a Run
when all have come. After a failure it sends Stop to all, and the next Run when all are ready again.
It answers heartbeats.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import server_options

SERVICE, METHOD = "rallypoint.v1.AgentService", "Session"


@dataclass(slots=True)
class Floor:
    """Counts messages and answers with copies."""

    nodes: int
    welcome: bytes
    run: agent_pb2.SessionResponse
    stop: bytes
    answer: bytes
    round: int = 0
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
            async for message in requests:
                self._take(message, queue)
            writer.cancel()
        self.queues.remove(queue)

    def _take(self, message: bytes, queue: asyncio.Queue[bytes]) -> None:
        match message[:1]:
            case b"B":
                queue.put_nowait(self.answer)
            case b"E":
                self._send_all(self.stop)
            case b"H":
                queue.put_nowait(self.welcome)
                self._arrive()
            case b"R":
                self._arrive()

    def _arrive(self) -> None:
        self.arrived += 1
        if self.arrived == self.nodes:
            self.arrived = 0
            self.round += 1
            self.run.desired.run.header.number = self.round
            self._send_all(self.run.SerializeToString())

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
    nodes = int(sys.argv[1])
    welcome, run, stop, answer = (bytes.fromhex(word) for word in sys.argv[2:6])
    floor = Floor(nodes, welcome, agent_pb2.SessionResponse.FromString(run), stop, answer)
    server = grpc.aio.server(options=server_options())
    handler: Any = grpc.stream_stream_rpc_method_handler(floor.session)
    handlers = grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
