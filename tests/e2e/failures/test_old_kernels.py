"""A kernel, or a profile of a container runtime, without the system calls of the last years."""

from __future__ import annotations

import errno
import os
import signal

import pytest

from support.broods.family import BROOD, GRACE_S, SCRIPT, find_family
from support.processes.processes import Witness
from support.processes.sandbox import (
    OLD_KERNEL,
    OLD_PROFILE,
    PIDFD_OPEN,
    PIDFD_SEND_SIGNAL,
    sandbox,
)
from support.processes.world import World
from support.tries.commit import choose_marks

SANDBOXES = {
    "old kernel": OLD_KERNEL,
    "old profile": OLD_PROFILE,
    "no pidfd": (errno.EPERM, PIDFD_OPEN, PIDFD_SEND_SIGNAL),
    "no open": (errno.ENOSYS, PIDFD_OPEN),
    "no signal": (errno.EPERM, PIDFD_SEND_SIGNAL),
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=choose_marks("old kernels", at, len(SANDBOXES), 1))
        for at, name in enumerate(SANDBOXES)
    ]
)
def prefix(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return what puts a command into a sandbox."""
    return sandbox(*SANDBOXES[request.param])


@pytest.mark.parametrize("hosts", [False, True])
def test_job_runs(world: World, prefix: tuple[str, ...], hosts: bool) -> None:
    """With a built-in and with a hosted coordinator, and without a word about it."""
    endpoint = f"--rdzv-endpoint=127.0.0.1:{world.ports.reserve()}"
    where = ("--nnodes=1", endpoint) if hosts else ()
    command = world.standalone(*where, "--no-python", script=("echo", "hi"))
    done = world.run(*prefix, *(word for word in command if not hosts or word != "--standalone"))

    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr
    assert "helper" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("end", ["agent", "worker"])
def test_nothing_is_left(world: World, witness: Witness, prefix: tuple[str, ...], end: str) -> None:
    """Every descendant of the workers ends with its round, and with an agent that is killed."""
    flags = (f"--job-id={world.job_id}", f"--shutdown-timeout={GRACE_S}")
    agent = world.agent("a", *flags, nproc=2, script=SCRIPT, prefix=prefix)
    world.mailbox.wait("started", 2)
    world.mailbox.wait("brood", len(BROOD))
    family = find_family(world, witness, world.job_id)
    if end == "agent":
        agent.signal(signal.SIGKILL)
    else:
        family.parent.tell("exit", "1")

    assert agent.wait() == (-signal.SIGKILL if end == "agent" else 1)
    assert world.left() == []
    assert witness.await_deaths() == []


def test_helper_dies(world: World, witness: Witness, prefix: tuple[str, ...]) -> None:
    """Its workers, whom nothing but the agent can find, end before those of the next round."""
    flags = (f"--job-id={world.job_id}", "--shutdown-timeout=1", "--max-restarts=1")
    agent = world.agent("a", *flags, nproc=2, script=SCRIPT, prefix=prefix)
    world.mailbox.wait("started", 2)
    world.mailbox.wait("brood", len(BROOD))
    family = find_family(world, witness, world.job_id)
    os.kill(family.parent.parent, signal.SIGKILL)
    again = world.mailbox.workers(2, round=2)

    assert witness.await_deaths() == []
    for worker in again:
        worker.tell("exit", "0")
    assert agent.wait() == 0
    assert world.left() == []
