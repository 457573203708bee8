"""With --fence-after, warm workers of an old round are dead before the next round begins."""

import signal

from support.processes.processes import Witness
from support.processes.world import World
from support.warm.standbys import Room

FENCE = ("--fence-after=4", "--shutdown-timeout=1")


def test_warm_workers_of_a_frozen_agent_die_without_it(world: World) -> None:
    """The helper below which the standbys have lived knows the fence of their round."""
    world.patience = ()
    room = Room(world, nproc=2, flags=FENCE, partner_flags=FENCE)
    workers = room.begin_warm_round()
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
    witness.close()
