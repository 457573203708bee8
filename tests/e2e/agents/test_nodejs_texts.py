"""Parts of the agent in Node.js: the texts of a Hello, what a refusal means, its own address."""

from __future__ import annotations

import json
import random

import grpc
import pytest
from google.protobuf import json_format
from google.rpc.status_pb2 import Status

from rallypoint.agent.machine.address import find_local_address
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import error_details_pb2 as details_pb2
from rallypoint.wire.channel import MESSAGE_BYTES_MAX
from rallypoint.wire.errors import pack_status
from support.languages.nodejs_client import Client
from support.processes.world import World

pytestmark = pytest.mark.nightly
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
READ = """
import { readEnding } from './protocol.js';
const [code, hex] = process.argv.slice(2);
const metadata = { get: () => [Buffer.from(hex, 'hex')] };
console.log(JSON.stringify(readEnding({ code: Number(code), details: 'refused', metadata })));
"""
"""Prints what the end of a stream means for the agent."""
ADDRESS = """
import { findAddress } from './address.js';
console.log(await findAddress(process.argv[2]));
"""


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


def read_ending(world: World, client: Client, status: Status) -> dict[str, object]:
    """Return what the agent makes of the status of its stream."""
    program = client.folder / "read.mjs"
    program.write_text(READ, encoding="utf-8")
    ran = world.run("node", str(program), str(status.code), status.SerializeToString().hex())
    assert ran.returncode == 0, ran.stderr
    ending: dict[str, object] = json.loads(ran.stdout)
    return ending


def test_refusal_is_judged_by_its_reason(world: World, client: Client) -> None:
    """The details may come in any order, and some may be unknown."""
    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = details_pb2.REFUSAL_REASON_SPEC_MISMATCH
    detail = details_pb2.SpecMismatch()
    status = pack_status(code, "refused", detail, reason=reason, field="hello.spec")
    assert len(status.details) == 3
    status.details.add(type_url="type.googleapis.com/rallypoint.v9.Unknown")
    orders = [list(status.details), list(reversed(status.details))]
    random.Random(1).shuffle(shuffled := list(status.details))

    for details in (*orders, shuffled):
        ending = read_ending(world, client, Status(code=status.code, details=details))
        assert ending == {"text": "refused", "exitCode": 2}


def test_refusal_with_a_pause_is_not_final(world: World, client: Client) -> None:
    """A limit that is reached for now makes the agent wait, whatever the reason."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = details_pb2.REFUSAL_REASON_LIMIT_REACHED
    limit = details_pb2.LimitReached()
    later = pack_status(code, "refused", limit, reason=reason, retry_ms=1500)
    never = pack_status(code, "refused", limit, reason=reason)

    assert read_ending(world, client, later) == {"text": "refused", "retryMs": 1500}
    assert read_ending(world, client, never) == {"text": "refused", "exitCode": 1}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "no-such-host.invalid"])
def test_address_is_that_of_a_python_agent(world: World, client: Client, host: str) -> None:
    """Agents of both languages beside a coordinator agree, so that neither is refused."""
    program = client.folder / "address.mjs"
    program.write_text(ADDRESS, encoding="utf-8")
    ran = world.run("node", str(program), f"{host}:50051")

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.strip() == find_local_address(host.strip("[]"))
