"""What workers and readers notice of a coordinator that is killed and continues: only a pause."""

from __future__ import annotations

from pathlib import Path

from rallypoint.client import Client
from support.processes.mailbox import Worker
from support.processes.world import NEW, WORKERS, World

SHARING = (str(WORKERS / "sharing.py"),)


def answer(world: World, worker: Worker, number: int) -> object:
    """Wait for the answer to the worker's command with this number."""
    fields = world.mailbox.wait("done", number, pid=worker.pid)[-1].fields
    return fields.get("error") or fields["result"]


def test_calls_and_watches_notice_only_a_pause(world: World, tmp_path: Path) -> None:
    """A barrier that was half full is released, keys are there, a change that is sent again counts
    once, and a watch of events continues without a gap."""
    port, state = world.ports.reserve(), f"--state=sqlite:{tmp_path / 'state' / 'j.sqlite'}"
    coordinator = world.coordinator(port, state, *NEW)
    agent = world.agent("a", "--max-restarts=1", nproc=2, script=SHARING)
    first, second = world.mailbox.workers(2)
    first.tell("put", "step", "7")
    answer(world, first, 1)
    first.tell("barrier", "epoch", "100")
    with (
        Client(world.target) as client,
        client.watch_events(world.job_id, after=0) as events,
    ):
        seen = [next(events)]
        while not any(one.arrived_count for one in client.list_barriers(world.job_id)):
            pass  # each look is a call, which takes longer than an arrival
        coordinator.kill()
        second.tell("barrier", "epoch", "100")  # there is no coordinator now
        world.coordinator(port, state)
        released = [answer(world, first, 2), answer(world, second, 1)]
        second.tell("get", "step", "0")
        found = answer(world, second, 2)
        for worker in (first, second):
            worker.tell("exit", "0")
        assert agent.wait() == 0, agent.stderr()
        while not seen[-1].HasField("run_closed"):
            seen.append(next(events))
        every = list(client.list_events(world.job_id))

    assert ["ok", "ok", "7"] == [*released, found]
    numbers = [event.sequence for event in every]
    assert numbers[: len(seen)] == [event.sequence for event in seen]
    kinds = [event.WhichOneof("detail") for event in seen]
    assert (kinds.count("run_opened"), kinds.count("round_sealed")) == (1, 1)
    assert "node_resumed" in kinds
