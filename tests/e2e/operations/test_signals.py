"""Agents that are signalled or killed: what their workers get, and that nothing is left."""

import contextlib
import os
import select
import signal
import subprocess
import time

import pytest

from rallypoint.agent.core.leaving.signals import describe_signal
from rallypoint.cli.commands.agent.session import REPORT_LIMIT_S
from support.processes.commands import Command
from support.processes.feed import LIMIT_S
from support.processes.mailbox import Worker
from support.processes.world import World

AT_ONCE_S = 20.0
"""Less than the time that workers have to end, and ample for a busy machine."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start_one(world: World, *flags: str, **handling: str) -> tuple[Command, Worker]:
    """Start a node with one worker that handles signals as given: TERM="ignore"."""
    agent = world.agent("a", *flags)
    (worker,) = world.mailbox.workers(1)
    teach(world, worker, **handling)
    return agent, worker


def teach(world: World, worker: Worker, **handling: str) -> None:
    for name, manner in handling.items():
        worker.tell(name, manner)
    world.mailbox.wait("ready", len(handling), pid=worker.pid)


def signal_to_the_end(pid: int, signum: signal.Signals) -> None:
    """Signal a child that is ending, repeatedly, until it has died."""
    ended, limit_s = os.pidfd_open(pid), time.monotonic() + LIMIT_S
    while not select.select([ended], [], [], 0.002)[0]:
        signal.pidfd_send_signal(ended, signum)
        assert time.monotonic() < limit_s, "it does not end"
    os.close(ended)


def signals_of(world: World, worker: Worker) -> list[int]:
    said = world.mailbox.said("signalled")
    return [item.fields["signum"] for item in said if item.pid == worker.pid]


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_to_an_agent_is_the_workers_signal(world: World, signum: signal.Signals) -> None:
    """Workers get the same signal once; the agent exits with 128+n, and nothing is left."""
    agent = world.agent("a", nproc=2)
    workers = world.mailbox.workers(2)
    for worker in workers:
        teach(world, worker, **{signum.name.removeprefix("SIG"): "mute"})
    agent.signal(signum)

    assert agent.wait(limit_s=AT_ONCE_S) == 128 + signum
    assert [signals_of(world, worker) for worker in workers] == [[signum], [signum]]
    assert agent.said() == [f"node-agent: {describe_signal(signum)}"]
    assert world.left() == []


def test_signal_to_an_agent_that_waits(world: World) -> None:
    """An agent without workers ends at once, too."""
    agent = world.agent("a", nnodes="2")
    agent.wait_event("coordinator_reached")
    agent.signal(signal.SIGTERM)

    assert agent.wait(limit_s=AT_ONCE_S) == 128 + signal.SIGTERM
    assert world.left() == []


def test_worker_that_ignores_the_signal_is_killed_after_the_grace(world: World) -> None:
    """SIGKILL follows SIGTERM after --shutdown-timeout, not earlier."""
    agent, worker = start_one(world, "--shutdown-timeout=0.4", TERM="ignore")
    began_s = time.monotonic()
    agent.signal(signal.SIGTERM)

    assert agent.wait() == 128 + signal.SIGTERM
    assert time.monotonic() - began_s >= 0.4
    assert signals_of(world, worker) == [signal.SIGTERM]
    assert world.left() == []


@pytest.mark.parametrize("second", SIGNALS[:2])
def test_second_signal_kills_at_once(world: World, second: signal.Signals) -> None:
    """A second signal does not wait; the exit code is that of the first signal."""
    agent, worker = start_one(world, "--shutdown-timeout=600", INT="ignore", TERM="ignore")
    agent.signal(signal.SIGINT)
    world.mailbox.wait("signalled", pid=worker.pid)
    agent.signal(second)

    assert agent.wait(limit_s=AT_ONCE_S) == 128 + signal.SIGINT
    assert signals_of(world, worker) == [signal.SIGINT]
    assert world.left() == []


def test_signals_up_to_the_very_end(world: World) -> None:
    """A signal in the last moment does not change the exit code."""
    agent, worker = start_one(world, INT="obey")
    agent.signal(signal.SIGINT)
    # Of two that wait for a process at once, the kernel lets it handle the later one first.
    world.mailbox.wait("signalled", pid=worker.pid)
    signal_to_the_end(agent.pid, signal.SIGTERM)

    assert agent.wait() == 128 + signal.SIGINT
    assert world.left() == []


def test_signal_ends_the_wait_for_a_console(world: World) -> None:
    """Who sends one when all is over, and the report meets a console that stands still, need not
    wait for it; the exit code is the job's."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write_fd, b"x" * 4096)
    os.set_blocking(write_fd, True)
    argv = world.standalone()
    agent = subprocess.Popen(argv, env=world.env(), cwd=world.folder, stderr=write_fd)
    (worker,) = world.mailbox.workers(1)
    worker.tell("exit", "1")
    while len(world.marked()) > len(("agent",)):
        assert agent.poll() is None
    began_s = time.monotonic()
    signal_to_the_end(agent.pid, signal.SIGINT)
    took_s = time.monotonic() - began_s
    os.close(read_fd)
    os.close(write_fd)

    assert agent.wait() == 1
    assert took_s < REPORT_LIMIT_S * 0.9


def test_signal_to_an_agent_without_a_coordinator(world: World) -> None:
    """An agent that still tries to reach its coordinator ends at once, too."""
    agent = world.agent("a", "--coordinator=127.0.0.1:1")
    agent.wait_event("coordinator_not_reached")
    agent.signal(signal.SIGTERM)

    assert agent.wait(limit_s=AT_ONCE_S) == 128 + signal.SIGTERM
    assert world.left() == []


@pytest.mark.parametrize("signum", SIGNALS)
def test_signal_while_the_agent_starts(world: World, signum: signal.Signals) -> None:
    """All that it has started by then is gone, and it leaves no files."""
    files = world.folder / "tmp"
    files.mkdir()
    agent = world.agent("a", env={"TMPDIR": str(files)})
    while len(world.marked()) < len(("agent", "helper")):
        assert agent.is_running()
    agent.signal(signum)

    assert agent.wait(limit_s=AT_ONCE_S) in (-signum, 128 + signum)
    assert world.left() == []
    assert list(files.iterdir()) == []


def test_signal_that_only_tells_something(world: World) -> None:
    """Workers get each notification signal; they, their children and the agent keep running."""
    agent = world.agent("a", "--signals-to-handle=term,SIGUSR1,Usr2", nproc=2)
    workers = world.mailbox.workers(2)
    for worker in workers:
        teach(world, worker, USR1="ignore", USR2="ignore")
        worker.tell("fork")
    children = {child.pid for child in world.mailbox.wait("child", len(workers))}
    for count, signum in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1), start=1):
        agent.signal(signum)
        for worker in workers:
            world.mailbox.wait("signalled", count, pid=worker.pid)

    assert children <= set(world.marked())
    for worker in workers:
        assert signals_of(world, worker) == [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1]
        assert worker.env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1,SIGUSR2"
        worker.tell("exit", "0")
    assert agent.wait() == 0


def test_worker_that_dies_of_what_it_was_told(world: World) -> None:
    """A worker that dies of a forwarded signal has failed, and the verdict names the signal."""
    agent = world.agent("a", "--signals-to-handle=USR1")
    (worker,) = world.mailbox.workers(1)
    agent.signal(signal.SIGUSR1)

    assert agent.wait() == 1
    assert f"  exitcode  : -10 (pid: {worker.pid}) (SIGUSR1)" in agent.said()
    assert "signal 10 (SIGUSR1)" in world.jobs.get(world.job_id).verdict.text


def test_signal_that_tells_something_to_nobody(world: World) -> None:
    """The agent survives it from its start on, and logs that no worker got it."""
    agent = world.agent("a", "--signals-to-handle=USR1,USR2,TERM", nnodes="2")
    while len(world.marked()) < len(("agent", "helper")):
        assert agent.is_running()
    agent.signal(signal.SIGUSR2)
    agent.wait_event("coordinator_reached")
    agent.signal(signal.SIGUSR1)
    unheard = agent.wait_event("signal_not_forwarded")
    other = world.agent("b", nnodes="2")
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")

    assert unheard["signal"] == "SIGUSR1"
    assert [agent.wait(), other.wait()] == [0, 0]


def test_job_outlives_its_terminal_under_nohup(world: World) -> None:
    """A SIGHUP that is ignored at the start stays ignored, unless a flag names it."""
    agent = world.agent("a", nnodes="2", prefix=["nohup"])
    other = world.agent("b", "--signals-to-handle=HUP", nnodes="2", prefix=["nohup"])
    workers = world.mailbox.workers(2)
    agent.signal(signal.SIGHUP)
    other.signal(signal.SIGHUP)

    assert other.wait(limit_s=AT_ONCE_S) == 128 + signal.SIGHUP
    assert agent.is_running()
    assert workers[0].env["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGQUIT"
    agent.signal(signal.SIGTERM)
    assert agent.wait(limit_s=AT_ONCE_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("signum", SIGNALS[1:])
def test_signal_that_is_not_handled(world: World, signum: signal.Signals) -> None:
    """It has its default effect on the agent; workers are killed and nothing is left."""
    agent = world.agent("a", "--signals-to-handle=SIGTERM", nproc=2)
    for worker in world.mailbox.workers(2):
        teach(world, worker, **{signum.name.removeprefix("SIG"): "ignore"})
    agent.signal(signum)

    assert agent.wait(limit_s=AT_ONCE_S) == -signum
    assert world.left() == []
    assert world.mailbox.said("signalled") == []


def test_killed_helper_costs_a_restart_and_no_more(world: World) -> None:
    """After SIGKILL to the helper its workers die, and the agent starts another helper."""
    agent = world.agent("a", "--max-restarts=1", nproc=2)
    first = world.mailbox.workers(2)
    first[0].tell("spawn")
    world.mailbox.wait("grandchild")
    world.kill(first[0].parent)
    second = world.mailbox.workers(2, round=2)

    assert [worker.restart_count for worker in second] == [1, 1]
    assert second[0].parent not in (first[0].parent, agent.pid)
    assert len(world.marked()) == len(("agent", "helper", *second))
    for worker in second:
        worker.tell("exit", "0")
    assert agent.wait() == 0


def test_killed_helper_while_nothing_runs_is_replaced(world: World) -> None:
    """An agent that waits for peers starts another helper, and the job runs."""
    first = world.agent("a", nnodes="2")
    first.wait_event("coordinator_reached")
    (helper,) = (pid for pid in world.marked() if pid != first.pid)
    world.kill(helper)
    first.wait_event("helper_lost")
    second = world.agent("b", nnodes="2")
    for worker in world.mailbox.workers(2):
        worker.tell("exit", "0")

    assert [first.wait(), second.wait()] == [0, 0]


def test_killed_agent_may_come_back_at_once(world: World) -> None:
    """It gets its name and ranks again without a goodbye, and nothing is charged."""
    flags = ("--shutdown-timeout=5",)
    stays = world.agent("a", *flags, nnodes="2", nproc=2)
    killed = world.agent("b", *flags, nnodes="2", nproc=2)
    first = world.mailbox.workers(4)
    killed.kill()
    back = world.agent("b", *flags, nnodes="2", nproc=2)
    second = world.mailbox.workers(4, round=2)

    assert [(worker.rank, worker.node) for worker in first] == [
        (worker.rank, worker.node) for worker in second
    ]
    assert [worker.restart_count for worker in second] == [0] * 4
    assert not {worker.pid for worker in first} & set(world.marked())
    for worker in second:
        worker.tell("exit", "0")
    assert [stays.wait(), back.wait()] == [0, 0]
