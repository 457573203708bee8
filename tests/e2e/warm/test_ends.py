"""Nothing outlives a node with standbys, however it ends."""

import os
import signal
import time

import pytest

from support.processes.feed import LIMIT_S
from support.processes.processes import Witness
from support.processes.terminal import CTRL_C, Terminal
from support.processes.world import OBEDIENT, WORKERS, World
from support.tries.commit import choose_marks
from support.warm.standbys import TRIES, Room, is_standby, parent_of

BROOD = ("breeder", "closed", "comet", "daemon", "scrubbed", "session")
ENDS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}


@pytest.mark.parametrize("signum", ENDS)
def test_end_of_an_agent_ends_its_standbys(world: World, signum: signal.Signals) -> None:
    """Whether it can stop them itself or not."""
    room = Room(world)
    standbys = room.await_ready(1)
    witness = Witness()
    witness.watch(*standbys, parent_of(standbys[0]))
    room.agent.signal(signum)

    assert room.agent.wait() == ENDS[signum]
    assert witness.await_deaths() == []
    assert world.left() == []
    witness.close()


@pytest.mark.parametrize("signum", ENDS)
def test_end_of_an_agent_ends_workers_that_were_standbys(
    world: World, signum: signal.Signals
) -> None:
    """They are workers like any others, and what they have started is found."""
    room = Room(world, nproc=1)
    (worker,) = room.begin_warm_round()
    worker.tell("spawn")
    (grandchild,) = world.mailbox.wait("grandchild", 1)
    witness = Witness()
    witness.watch(worker.pid, worker.parent, grandchild.pid)
    room.agent.signal(signum)

    assert room.agent.wait() == ENDS[signum]
    assert witness.await_deaths() == []
    witness.close()


def test_sweep_finds_what_a_warm_worker_has_started(world: World) -> None:
    """The node is ready for the next round only once nothing is left of the last one."""
    room = Room(world, nproc=1)
    (worker,) = room.begin_warm_round()
    worker.tell("spawn")
    (grandchild,) = world.mailbox.wait("grandchild", 1)
    witness = Witness()
    witness.watch(grandchild.pid)
    before = len(world.mailbox.started())
    worker.kill()
    room.await_workers(before)

    assert not witness.is_alive(grandchild.pid)
    witness.close()


def test_death_of_the_helper_of_warm_workers_ends_them(world: World) -> None:
    """The round fails, and the next one runs below another helper."""
    room = Room(world, nproc=1)
    (worker,) = room.begin_warm_round()
    witness = Witness()
    witness.watch(worker.pid)
    before = len(world.mailbox.started())
    os.kill(worker.parent, signal.SIGKILL)
    room.agent.wait_event("helper_lost")
    (other,) = room.await_workers(before)

    assert witness.await_deaths() == []
    assert other.parent != worker.parent
    witness.close()


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signum, marks=choose_marks("broods", at, 1 + len(ENDS), len(ENDS)))
        for at, signum in enumerate((None, *ENDS))
    ],
)
def test_brood_of_warm_workers_is_found(world: World, signum: signal.Signals | None) -> None:
    """Descendants that do everything to outlive a round or an agent do not: see brood.py."""
    flags = ("--max-restarts=50", "--shutdown-timeout=0.2", "--crash-loop=0", "--warm=json")
    script = (str(WORKERS / "brood.py"),)
    agent = world.agent("a", *flags, nproc=2, script=script)
    for number in range(1, TRIES + 1):
        workers = world.mailbox.workers(2, round=number)
        world.mailbox.wait("brood", len(BROOD) * number)
        if number > 1 and agent.wait_event("warm_started", count=number - 1)["workers"] == 2:
            break
        agent.wait_event("standbys_ready", count=number)
        workers[0].tell("exit", "1")
    else:
        raise AssertionError(agent.stderr())
    elders = [one.fields for one in world.mailbox.wait("elders", 2 * number)]
    assert elders == [{"pids": [], "was_free": True}] * (2 * number)
    if signum is None:
        workers[0].tell("exit", "1")
        world.mailbox.workers(2, round=number + 1)
        elders = [one.fields for one in world.mailbox.wait("elders", 2 * number + 2)]

        assert elders == [{"pids": [], "was_free": True}] * (2 * number + 2)
        return
    agent.signal(signum)

    assert agent.wait() == ENDS[signum]
    assert world.left() == []


def await_shown(terminal: Terminal, text: str) -> None:
    """Wait until a terminal shows a text."""
    end_s = time.monotonic() + LIMIT_S
    while text not in terminal.shown():
        assert time.monotonic() < end_s, terminal.shown()
        time.sleep(0.02)


def test_ctrl_c_on_a_terminal_ends_standbys(world: World) -> None:
    """They are not in the foreground group, and end with the agent."""
    argv = world.argv("a", "--warm=json", nnodes="2", nproc=2, script=(OBEDIENT,))
    with Terminal(argv, world.env(), world.folder) as terminal:
        await_shown(terminal, "standbys_ready")
        standbys = [pid for pid in world.marked() if is_standby(pid)]
        witness = Witness()
        witness.watch(*standbys)
        terminal.type(CTRL_C)

        assert terminal.wait() == 130
    assert len(standbys) == 2
    assert witness.await_deaths() == []
    witness.close()
