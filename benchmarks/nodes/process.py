"""A process that holds a share of the simulated agents; its parent commands it by lines.

    python benchmarks/nodes/process.py TARGET FIRST COUNT NODES

begin       connect all agents of the share
fail        its next agent reports a failed worker

It prints `run` whenever all of its agents have received a new Run. It ends with its input.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.swarm import SimulatedAgent, open_channel


class Share:
    """The agents of this process."""

    def __init__(self, target: str, first: int, count: int, nodes: int) -> None:
        """Make `count` agents of a job of `nodes`."""
        self._target = target
        self._count = count
        self._arrived = 0
        self._failures = 0
        self._agents = [
            SimulatedAgent(number, nodes, self._arrive) for number in range(first, first + count)
        ]

    def _arrive(self) -> None:
        self._arrived += 1
        if self._arrived == self._count:
            self._arrived = 0
            print("run", flush=True)

    async def obey(self, lives: asyncio.TaskGroup) -> None:
        """Carry out commands until the input ends."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        channels = [open_channel(self._target) for _ in self._agents]
        print("ready", flush=True)
        while command := (await reader.readline()).strip():
            match command:
                case b"begin":
                    for agent, channel in zip(self._agents, channels, strict=True):
                        lives.create_task(agent.live(channel))
                case b"fail":
                    await self._agents[self._failures % self._count].fail()
                    self._failures += 1
                case _:
                    raise ValueError(command)


async def main() -> None:
    """Serve the parent until the input ends."""
    gc.disable()  # so that no agent is late because of another; the process lives for minutes
    target, *numbers = sys.argv[1:]
    async with asyncio.TaskGroup() as lives:
        await Share(target, *map(int, numbers)).obey(lives)
        # Closing thousands of channels takes grpc.aio minutes, and has been seen to hang.
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
