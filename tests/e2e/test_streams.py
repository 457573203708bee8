"""Standard streams that are closed, full or without a reader: the job goes on."""

import pytest

from support.commands import COORDINATOR, Command
from support.world import World

BROKEN = {
    "closed": "<&- >&- 2>&-",
    "full": ">/dev/full 2>/dev/full",
    "unread": "> >(true) 2>&1",
}


def start(world: World, name: str, kind: str, argv: list[str]) -> Command:
    return world.start(name, ["bash", "-c", f'exec "$0" "$@" {BROKEN[kind]}', *argv])


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("code", [0, 1])
def test_agent_that_nobody_hears_runs_its_job(world: World, kind: str, code: int) -> None:
    """The exit code is the job's, whatever became of the log and the report."""
    agent = start(world, "agent", kind, world.standalone("--max-restarts=1"))
    (first,) = world.mailbox.workers(1)
    first.tell("say", "unheard")
    first.tell("exit", "5")
    (second,) = world.mailbox.workers(1, round=2)
    second.tell("exit", str(code))

    assert agent.wait() == code
    assert world.left() == []


def test_coordinator_whose_log_is_full_serves(world: World) -> None:
    """A full disk under the log ends no job."""
    port = world.ports.reserve()
    start(world, "coordinator", "full", [COORDINATOR, "--host=127.0.0.1", f"--port={port}"])
    world.target = f"127.0.0.1:{port}"
    agent = world.agent("a")
    for worker in world.mailbox.workers(1):
        worker.tell("exit", "0")

    assert agent.wait() == 0
