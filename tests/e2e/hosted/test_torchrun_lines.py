"""torchrun's command lines for several nodes, with the word replaced and nothing else started."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.hosted.lines import LINES, Line
from support.hosted.pair import NAMES, Pair
from support.machines.netns import Network, NotPermitted
from support.processes.world import World
from support.tries.commit import choose_long


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    try:
        network = Network(*NAMES)
    except NotPermitted as why:
        pytest.skip(str(why))
    with (
        network,
        tempfile.TemporaryDirectory() as folder,
        World(tmp_path, "localhost:1", f"{folder}/mailbox") as world,
        Pair(network, world) as pair,
    ):
        yield pair


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_line_is_printed_by_torch(line: Line) -> None:
    """The installed release still documents it so."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed")
    text = Path(spec.origin).parent.joinpath(line.file).read_text() if line.file else ""

    assert [part for part in line.printed if part not in text] == []


def test_there_are_lines_enough() -> None:
    """Both styles, with a fixed number of nodes and with a range."""
    assert len(LINES) >= 10
    assert {line.is_elastic for line in LINES} == {True, False}
    assert any("--master-addr" in line.flags for line in LINES)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line.name, marks=choose_long("lines of torch", at, 3))
        for at, line in enumerate(LINES)
    ],
)
def test_job_survives_whatever_fails(pair: Pair, line: Line) -> None:
    """A worker, the other node, the agent of the host, its coordinator; nothing is left."""
    world = pair.world
    agents = [pair.agent(rank, line) for rank in (1, 0)][::-1]
    started = agents[0].wait_event("coordinator_started")
    reached = agents[1].wait_event("coordinator_reached")
    pair.follow(started["address"])
    job_id = reached["job"]
    job = pair.await_round(job_id, nodes=2)

    assert started["kind"] == "hosted"
    assert pair.coordinators() == [started["pid"]]

    # A worker fails.
    number = job.round.header.number
    world.mailbox.workers(4, round=number)[3].tell("exit", "1")
    job = pair.await_round(job_id, nodes=2, after=number)
    assert job.restart_count == 1

    # The other node dies, and another agent takes its place.
    number = job.round.header.number
    agents[1].kill()
    if line.is_elastic:
        number = pair.await_round(job_id, nodes=1, after=number).round.header.number
    agents[1] = pair.agent(1, line)
    job = pair.await_round(job_id, nodes=2, after=number)

    # The agent of the node that hosts is killed, and starts again.
    number = job.round.header.number
    agents[0].signal(signal.SIGKILL)
    if line.is_elastic:
        number = pair.await_round(job_id, nodes=1, after=number).round.header.number
    agents[0] = pair.agent(0, line)
    job = pair.await_round(job_id, nodes=2, after=number)
    assert agents[0].events("coordinator_started") == []
    assert pair.coordinators() == [started["pid"]]
    assert job.restart_count == 1

    # The coordinator itself is killed: the round continues.
    world.kill(started["pid"])
    again = agents[0].wait_event("coordinator_started")
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    pair.follow(again["address"])
    assert pair.await_round(job_id, nodes=2).round.header.number == job.round.header.number
    assert again["pid"] != started["pid"]

    for worker in world.mailbox.workers(4, round=job.round.header.number):
        worker.tell("exit", "0")
    assert [agent.wait() for agent in agents] == [0, 0]
    assert world.left() == []
    assert pair.folders() == []
