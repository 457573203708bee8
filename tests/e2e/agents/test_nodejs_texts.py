"""A Hello of the agent in Node.js fits into a message, however many workers have failed."""

from __future__ import annotations

import json

import pytest
from google.protobuf import json_format

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from support.languages.nodejs_client import Client
from support.processes.world import World

WIDE = "\U0001f600"
"""A character of four bytes, and of two units in JavaScript."""
PROGRAM = """
import { limitTexts } from './workers.js';
const wide = (count) => '\U0001f600'.repeat(count);
const workers = Array.from({ length: Number(process.argv[2]) }, (_, localRank) => {
  const error = { message: wide(2048), traceback: wide(8192) };
  const age = { seconds: 10_000 - localRank, nanos: 0 };
  const exit = { exitCode: 1, age, error, stderrTail: wide(2048) };
  return { localRank, pid: localRank + 1, state: 'WORKER_STATE_EXITED', exit };
});
console.log(JSON.stringify(limitTexts(workers)));
"""
"""Prints workers that have failed one after the other, as the agent would show them in a Hello."""


@pytest.mark.parametrize("count", [16, 200, 4_096])
def test_first_failures_keep_their_texts(world: World, client: Client, count: int) -> None:
    """The texts of others are cut, between characters."""
    program = client.folder / "limit.mjs"
    program.write_text(PROGRAM, encoding="utf-8")
    ran = world.run("node", str(program), str(count))
    assert ran.returncode == 0, ran.stderr
    shown = json.loads(ran.stdout)
    for worker in shown:
        worker["exit"]["age"] = f"{worker['exit']['age']['seconds']}s"
    held = json_format.ParseDict({"workers": shown}, agent_pb2.HeldRound())

    assert held.ByteSize() < MESSAGE_BYTES_MAX
    assert [worker.local_rank for worker in held.workers] == list(range(count))
    whole = [len(worker.exit.error.traceback) == 8_192 for worker in held.workers]
    assert whole == [True] * 16 + [False] * (count - 16)
    assert all(worker.exit.error.message.startswith(WIDE) for worker in held.workers)
