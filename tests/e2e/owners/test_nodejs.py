"""The agent in Node.js with several coordinators."""

from __future__ import annotations

import signal

import pytest

from support.etcd.coordinators import Coordinators, until_job
from support.languages.nodejs_client import Client
from support.processes.jobs import is_started, pids
from support.processes.world import World


@pytest.mark.long
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_agent_goes_where_the_owner_is(
    world: World, on_one: Coordinators, client: Client, end: signal.Signals
) -> None:
    """It is sent there, and follows when another one takes over; its workers get all addresses."""
    first, *_ = on_one.start_many(3)
    owner = on_one.owner()
    others = [seat.address for seat in on_one.others()]
    world.target = ",".join([*others, "127.0.0.1:1"])
    nodejs = client.join(world, "b", nnodes="1")
    (worker,) = world.mailbox.workers(1)
    before = until_job(first, world.job_id, lambda job: is_started(job, 1))
    assert {*others, "127.0.0.1:1"} <= {*worker.env["RALLYPOINT_COORDINATOR"].split(",")}
    owner.command.signal(end)
    nodejs.wait_text("agent: joined as b", 2)

    shown = next(seat for seat in on_one.seats if seat is not owner)
    after = until_job(shown, world.job_id, lambda job: job.nodes[0].attached)
    assert before.round.header == after.round.header
    assert [worker.pid] == pids(after)
    worker.tell("exit", "0")
    assert 0 == nodejs.wait()
