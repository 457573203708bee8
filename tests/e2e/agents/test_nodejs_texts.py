"""A Hello of the agent in Node.js fits into a message, however many workers have failed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from support.languages.nodejs_client import Client
from support.processes.world import World

PROGRAM = """
import {{ limitTexts }} from './workers.js';
import {{ readFileSync }} from 'node:fs';
console.log(JSON.stringify(limitTexts(JSON.parse(readFileSync({path})))));
"""
WIDE = "\U0001f600"
"""A character of four bytes, and of two units in JavaScript."""


def failed(rank: int, char: str) -> dict[str, Any]:
    """Return a worker that has failed, later than those of lower ranks, with long texts."""
    error = {"message": char * 2_048, "traceback": char * 8_192}
    age = {"seconds": 10_000 - rank, "nanos": 0}
    exit = {"exitCode": 1, "age": age, "error": error, "stderrTail": char * 2_048}
    return {"localRank": rank, "pid": rank + 1, "state": "WORKER_STATE_EXITED", "exit": exit}


@pytest.mark.parametrize("count", [16, 200, 4_096])
def test_first_failures_keep_their_texts(world: World, client: Client, count: int) -> None:
    """The texts of others are cut, between characters."""
    path = world.folder / "workers.json"
    path.write_text(json.dumps([failed(rank, WIDE) for rank in range(count)]))
    program = client.folder / "limit.mjs"
    program.write_text(PROGRAM.format(path=json.dumps(str(path))))
    ran = world.run("node", str(program))
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
