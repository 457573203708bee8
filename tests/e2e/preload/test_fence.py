"""With --fence-after, forked workers of an old round are dead before the next round begins."""

import signal

from support.preload.room import Room, is_forked
from support.processes.processes import Witness
from support.processes.world import World

FENCE = ("--fence-after=4", "--shutdown-timeout=1")


def test_forked_workers_of_a_frozen_agent_die_without_it(world: World) -> None:
    """The helper knows the fence of their round. It spares the forkserver."""
    world.patience = ()
    room = Room(world, nproc=2, flags=FENCE, partner_flags=FENCE)
    server = room.await_ready()
    workers = room.begin_forked_round()
    witness = Witness()
    witness.watch(*(worker.pid for worker in workers))
    workers[1].tell("TERM", "ignore")
    world.mailbox.wait("ready", pid=workers[1].pid)
    before = len(world.mailbox.started())
    room.agent.signal(signal.SIGSTOP)

    assert witness.await_deaths() == []
    room.agent.signal(signal.SIGCONT)
    room.agent.wait_event("fence_enforced")
    again = room.await_workers(before)
    assert [worker.rank % 2 for worker in again] == [0, 1]
    assert {worker.restart_count for worker in again} == {0}
    assert all(is_forked(worker.pid) for worker in again)
    assert room.forkservers() == [server]
    witness.close()
