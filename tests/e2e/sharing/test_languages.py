"""Workers in other languages: the examples in Node.js and Go, prepared as their READMEs say."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.wire.channel import client_options
from support.core.key_calls import change
from support.docs.shell import Shell
from support.languages.examples import Example, prepare_go, prepare_nodejs
from support.machines.proxy import Proxy
from support.processes.commands import SCRIPTS, Command
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, WORKERS, World


def await_arrival(world: World, rank: int, name: str) -> None:
    """Wait until a rank has arrived at a barrier of the test's job. No call waits for that."""
    stub = barrier_grpc.BarrierServiceStub(world.jobs.channel)
    request = barrier_pb2.ListBarriersRequest(job_id=world.job_id)
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        barriers = stub.ListBarriers(request, timeout=LIMIT_S).barriers
        if any(one.name == name and rank in one.arrived.ranks for one in barriers):
            return
    raise AssertionError(f"rank {rank} has not arrived at {name}")


class LostReplies(grpc.GenericRpcHandler):
    """Forwards unary calls to a coordinator. The first reply to every method is lost."""

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


GO_LIMIT_S = 600
"""For a test that has to build the example first."""
GO_MARKS = (pytest.mark.nightly, pytest.mark.timeout(GO_LIMIT_S))
LANGUAGES = ("nodejs", pytest.param("go", marks=GO_MARKS))
GO = SCRIPTS / "go"
OF_WORKER = ("RANK", "WORLD_SIZE", "RALLYPOINT_")


@pytest.fixture(scope="module")
def nodejs(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return prepare_nodejs(tmp_path_factory.mktemp("nodejs"))


@pytest.fixture(scope="module")
def go(tmp_path_factory: pytest.TempPathFactory) -> Example:
    return prepare_go(tmp_path_factory.mktemp("go"))


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Example:
    found: Example = request.getfixturevalue(request.param)
    return found


def start_in_place_of(
    world: World,
    worker: Worker,
    example: Example,
    *flags: str,
    env: Mapping[str, str] | None = None,
) -> Command:
    """Start an example with the environment of a worker that does not arrive itself."""
    own = {name: value for name, value in worker.env.items() if name.startswith(OF_WORKER)}
    return world.start(example.label, [*example.argv, *flags], {**own, **(env or {})})


def token_of(worker: Worker) -> tuple[tuple[str, str], ...]:
    return (("rallypoint-worker-token", worker.env["RALLYPOINT_WORKER_TOKEN"]),)


def arrive(world: World, worker: Worker) -> barrier_pb2.ArriveResponse:
    """Let a worker arrive at the barrier of the examples."""
    request = barrier_pb2.ArriveRequest(
        job_id=world.job_id,
        name="hello",
        participant=barrier_pb2.Participant(rank=worker.rank),
        payload=b"Python",
    )
    stub = barrier_grpc.BarrierServiceStub(world.jobs.channel)
    return stub.Arrive(request, timeout=LIMIT_S, metadata=token_of(worker))


def put(world: World, worker: Worker) -> None:
    """Let a worker set its key, as the examples do."""
    key = f"language/{worker.rank}"
    writes = [change(key, put={"value": b"Python"})]
    request = keys_pb2.WriteKeysRequest(job_id=world.job_id, writes=writes)
    stub = keys_grpc.KeyValueServiceStub(world.jobs.channel)
    stub.WriteKeys(request, timeout=LIMIT_S, metadata=token_of(worker))


def version(world: World, worker: Worker) -> int:
    """Return how often the key of a worker was set."""
    request = keys_pb2.GetKeysRequest(job_id=world.job_id, keys=[f"language/{worker.rank}"])
    stub = keys_grpc.KeyValueServiceStub(world.jobs.channel)
    (kv,) = stub.GetKeys(request, timeout=LIMIT_S, metadata=token_of(worker)).kvs
    return kv.version


def printed_as_rank_1(example: Example) -> list[str]:
    """Return what an example prints when rank 0 is the test."""
    return [
        "rank 0 sent: Python",
        f"rank 1 sent: {example.label}, rank 1",
        f"languages: Python, {example.label}",
    ]


@pytest.mark.parametrize(
    "names", [("nodejs",), pytest.param(("nodejs", "go"), marks=GO_MARKS)], ids="+".join
)
def test_languages_meet(
    world: World, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """Workers in several languages get what all of them have sent and set, by rank."""
    programs = {"Python": [str(WORKERS / "meeting.py")]}
    for name in names:
        example = request.getfixturevalue(name)
        programs[example.label] = ["--no-python", *example.argv]
    flags, nnodes = ("--allow-different-programs",), str(len(programs))
    agents = [
        world.agent(label.lower(), *flags, nnodes=nnodes, script=script)
        for label, script in programs.items()
    ]

    assert [agent.wait() for agent in agents] == [0] * len(agents)
    printed, *others = [agent.stdout().splitlines() for agent in agents]
    by_rank = printed[-1].removeprefix("languages: ").split(", ")
    assert sorted(by_rank) == sorted(programs)
    sent = [f"rank {rank} sent: {label}, rank {rank}" for rank, label in enumerate(by_rank)]
    assert printed[:-1] == sent
    assert others == [printed] * len(others)


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_missing_rank_is_named(world: World, example: Example) -> None:
    """After its timeout an example ends with 1, and says who has not arrived."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    _, second = world.mailbox.workers(2)
    waiting = start_in_place_of(world, second, example, example.timeout(30))

    assert waiting.wait() == 1
    details, status = waiting.said()
    assert details == "missing: rank 0; lost: no one"
    assert status.endswith("missing: rank 0")
    assert "barrier hello failed: not all participants arrived within" in status


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_lost_rank_is_named(world: World, example: Example) -> None:
    """When a worker fails, an example that waits for it ends at once, and says who is lost."""
    for name in ("a", "b"):
        world.agent(name, "--max-restarts=1", nnodes="2")
    first, second = world.mailbox.workers(2)
    waiting = start_in_place_of(world, second, example)
    await_arrival(world, 1, "hello")
    first.tell("exit", "7")

    assert waiting.wait() == 1
    details, status = waiting.said()
    assert details == "missing: rank 0; lost: rank 0"
    assert f"rank 0 on node {first.node} failed: exit code 7" in status


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_missing_key_is_named(world: World, example: Example) -> None:
    """After its timeout an example ends with 1, and says which key no one has set."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    first, second = world.mailbox.workers(2)
    waiting = start_in_place_of(world, second, example, example.timeout(30))
    arrive(world, first)

    assert waiting.wait() == 1
    assert waiting.said()[0] == "missing keys: language/0"


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_broken_connection_is_no_second_arrival(world: World, example: Example) -> None:
    """An example whose call breaks off tries again, and gets the payloads of its first arrival."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    first, second = world.mailbox.workers(2)
    put(world, first)
    with Proxy(world.target) as proxy:
        env = {"RALLYPOINT_COORDINATOR": proxy.address}
        waiting = start_in_place_of(world, second, example, env=env)
        await_arrival(world, 1, "hello")
        proxy.cut()
        answer = arrive(world, first)
        code = waiting.wait()

    assert (code, waiting.stdout().splitlines()) == (0, printed_as_rank_1(example))
    assert answer.generation == 1


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_next_coordinator_is_called(world: World, example: Example) -> None:
    """An example that knows several calls those that answer, and its arrival counts once."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    first, second = world.mailbox.workers(2)
    put(world, first)
    with Proxy(world.target) as proxy:
        env = {"RALLYPOINT_COORDINATOR": f"{proxy.address},127.0.0.1:1,{world.target}"}
        waiting = start_in_place_of(world, second, example, env=env)
        await_arrival(world, 1, "hello")
        proxy.cut(refuse_s=LIMIT_S)
        answer = arrive(world, first)
        code = waiting.wait()

    assert (code, waiting.stdout().splitlines()) == (0, printed_as_rank_1(example))
    assert answer.generation == 1


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_lost_replies_count_once(world: World, example: Example) -> None:
    """A second attempt is the same arrival or change, and says what was known at the first."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    first, second = world.mailbox.workers(2)
    put(world, first)
    with LostReplies(world.target) as lossy:
        env = {"RALLYPOINT_COORDINATOR": lossy.address}
        waiting = start_in_place_of(world, second, example, env=env)
        answer = arrive(world, first)
        code = waiting.wait()

    assert (code, waiting.stdout().splitlines()) == (0, printed_as_rank_1(example))
    epoch = int(second.env["RALLYPOINT_EPOCH"])
    arrivals = [barrier_pb2.ArriveRequest.FromString(one) for one in lossy.attempts("Arrive")]
    puts = [keys_pb2.WriteKeysRequest.FromString(one) for one in lossy.attempts("WriteKeys")]
    assert [one.first_epoch for one in arrivals] == [0, epoch]
    assert [one.known.epoch for one in puts] == [0, answer.epoch]
    for attempts in (arrivals, puts):
        assert len({one.request_id for one in attempts}) == 1
        assert attempts[0].request_id
    assert (answer.generation, version(world, second)) == (1, 1)


@pytest.mark.long
@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
@pytest.mark.usefixtures("forgetful")
def test_forgotten_barrier_is_an_error(world: World, example: Example) -> None:
    """A new coordinator without memory does not take the second attempt for a first one."""
    port = world.ports.reserve()
    coordinator = world.coordinator(port, *NEW)
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    _, second = world.mailbox.workers(2)
    waiting = start_in_place_of(world, second, example)
    await_arrival(world, 1, "hello")
    coordinator.kill()
    world.coordinator(port)

    assert waiting.wait() == 1
    assert "started again without its memory" in waiting.said()[-1]


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_readme_runs_as_printed(world: World, tmp_path: Path, example: Example) -> None:
    """The commands that start workers succeed, and print what the README shows."""
    env = {**world.env(), "PATH": example.env["PATH"]}
    shell = Shell(env, example.folder)
    try:
        for step in example.run:
            assert shell.run(step.command) == 0, shell.text()
        shell.await_shapes([line for step in example.run for line in step.output])
    finally:
        shell.close()
    assert example.run


@pytest.mark.nightly
@pytest.mark.timeout(GO_LIMIT_S)
def test_go_is_vetted(go: Example) -> None:
    """The example in Go is formatted, and go's own checks find nothing."""
    root = run(go, str(GO), "env", "GOROOT").strip()

    assert run(go, f"{root}/bin/gofmt", "-l", "main.go") == ""
    assert run(go, str(GO), "vet", ".") == ""


def run(example: Example, *argv: str) -> str:
    """Run a program in the folder of an example; return what it prints."""
    ran = subprocess.run(
        argv, cwd=example.folder, env=dict(example.env), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
