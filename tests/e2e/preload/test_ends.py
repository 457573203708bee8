"""Nothing outlives a node with a forkserver, however it ends."""

import signal
import time

import pytest

from support.preload.room import is_forked, is_forkserver
from support.processes.feed import LIMIT_S
from support.processes.processes import Witness
from support.processes.terminal import CTRL_C, Terminal
from support.processes.world import OBEDIENT, WORKERS, World
from support.tries.commit import choose_marks

BROOD = ("breeder", "closed", "comet", "daemon", "scrubbed", "session")
ENDS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signum, marks=choose_marks("broods", at, 1 + len(ENDS), len(ENDS)))
        for at, signum in enumerate((None, *ENDS))
    ],
)
def test_brood_of_forked_workers_is_found(world: World, signum: signal.Signals | None) -> None:
    """Descendants that do everything to outlive a round or an agent do not: see brood.py."""
    flags = ("--max-restarts=50", "--shutdown-timeout=0.2", "--crash-loop=0", "--preload=json")
    script = (str(WORKERS / "brood.py"),)
    agent = world.agent("a", *flags, nproc=2, script=script)
    workers = world.mailbox.workers(2, round=1)
    world.mailbox.wait("brood", len(BROOD))
    elders = [one.fields for one in world.mailbox.wait("elders", 2)]
    assert elders == [{"pids": [], "was_free": True}] * 2
    assert all(is_forked(worker.pid) for worker in workers)
    if signum is None:
        workers[0].tell("exit", "1")
        again = world.mailbox.workers(2, round=2)
        elders = [one.fields for one in world.mailbox.wait("elders", 4)]

        assert elders == [{"pids": [], "was_free": True}] * 4
        assert all(is_forked(worker.pid) for worker in again)
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


def test_ctrl_c_on_a_terminal_ends_the_forkserver(world: World) -> None:
    """It is not in the foreground group, and ends with the agent."""
    argv = world.argv("a", "--preload=json", nnodes="2", nproc=2, script=(OBEDIENT,))
    with Terminal(argv, world.env(), world.folder) as terminal:
        await_shown(terminal, "preloaded")
        (server,) = (pid for pid in world.marked() if is_forkserver(pid))
        witness = Witness()
        witness.watch(server)
        terminal.type(CTRL_C)

        assert terminal.wait() == 130
    assert witness.await_deaths() == []
    witness.close()
