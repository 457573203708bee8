"""Workers in other languages: the examples in Node.js and Go, prepared as their READMEs say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rallypoint.v1 import barrier_service_pb2 as barrier_pb2
from rallypoint.v1 import barrier_service_pb2_grpc as barrier_grpc
from support.docs.shell import Shell
from support.languages.examples import Example, prepare_go, prepare_nodejs
from support.machines.proxy import Proxy
from support.processes.barriers import await_arrival
from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import NEW, WORKERS, World

GO_LIMIT_S = 600
"""For a test that has to build the example first."""
GO_MARKS = (pytest.mark.long, pytest.mark.timeout(GO_LIMIT_S))
LANGUAGES = ("nodejs", pytest.param("go", marks=GO_MARKS))
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


def arrive(world: World, worker: Worker) -> barrier_pb2.ArriveResponse:
    """Let a worker arrive at the barrier of the examples."""
    request = barrier_pb2.ArriveRequest(
        job_id=world.job_id,
        name="hello",
        participant=barrier_pb2.Participant(rank=worker.rank),
        payload=b"Python",
    )
    metadata = (("rallypoint-worker-token", worker.env["RALLYPOINT_WORKER_TOKEN"]),)
    stub = barrier_grpc.BarrierServiceStub(world.jobs.channel)
    return stub.Arrive(request, timeout=LIMIT_S, metadata=metadata)


@pytest.mark.parametrize(
    "names", [("nodejs",), pytest.param(("nodejs", "go"), marks=GO_MARKS)], ids="+".join
)
def test_languages_meet(
    world: World, names: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """Workers in several languages pass one barrier, and each gets what all have sent, by rank."""
    programs = {"Python": [str(WORKERS / "meeting.py")]}
    for name in names:
        example = request.getfixturevalue(name)
        programs[example.label] = ["--no-python", *example.argv]
    agents = [
        world.agent(
            label.lower(), "--allow-different-programs", nnodes=str(len(programs)), script=script
        )
        for label, script in programs.items()
    ]

    assert [agent.wait() for agent in agents] == [0] * len(agents)
    first, *others = [agent.stdout().splitlines() for agent in agents]
    assert all(printed == first for printed in others)
    ranks = range(len(programs))
    sent = [line.removeprefix(f"rank {rank} sent: ") for rank, line in enumerate(first)]
    assert sorted(sent) == sorted(
        f"{label}, rank {rank}" for label, rank in zip(map(language_of, sent), ranks, strict=True)
    )
    assert {language_of(line) for line in sent} == set(programs)


def language_of(sent: str) -> str:
    return sent.partition(",")[0]


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_missing_rank_is_named(world: World, example: Example) -> None:
    """After its timeout an example ends with 1, and says who has not arrived."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    _, second = world.mailbox.workers(2)
    waiting = start_in_place_of(world, second, example, example.timeout(2))

    assert waiting.wait() == 1
    details, status = waiting.said()
    assert details == "missing: rank 0; lost: no one"
    assert status.endswith("missing: rank 0")
    assert "barrier hello failed: not all participants arrived within" in status


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
    assert "rank 0 on node a failed: exit code 7" in status


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_broken_connection_is_no_second_arrival(world: World, example: Example) -> None:
    """An example whose call breaks off tries again, and gets the payloads of its first arrival."""
    for name in ("a", "b"):
        world.agent(name, nnodes="2")
    first, second = world.mailbox.workers(2)
    with Proxy(world.target) as proxy:
        env = {"RALLYPOINT_COORDINATOR": proxy.address}
        waiting = start_in_place_of(world, second, example, env=env)
        await_arrival(world, 1, "hello")
        proxy.cut()
        answer = arrive(world, first)
        code = waiting.wait()

    assert (code, waiting.stdout().splitlines()) == (
        0,
        ["rank 0 sent: Python", f"rank 1 sent: {example.label}, rank 1"],
    )
    assert answer.generation == 1


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
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
