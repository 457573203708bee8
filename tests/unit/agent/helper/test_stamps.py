"""The helper dates exits, and the signals before them, whenever the agent gets to read of them."""

from __future__ import annotations

import contextlib
import select
import signal
import time
from collections.abc import Callable

import pytest

from rallypoint.agent.helper.events import Clean, Exited
from support.processes.processes import DEADLINE_S, PYTHON, Conversation, Lines, Witness

PATIENT = "import os, signal; os.write(1, b'worker %d\\n' % os.getpid()); signal.pause()"
KILL, TERM = int(signal.SIGKILL), int(signal.SIGTERM)


async def next_exit(talk: Conversation) -> Exited:
    event = await talk.next_dated()
    assert isinstance(event, Exited)
    return event


async def test_exit_has_its_own_time_however_late_it_is_read(talk: Conversation) -> None:
    """An agent that stands still dates an exit by the helper's clock, not by its own waking."""
    await talk.start(*PYTHON, "import signal; signal.pause()")
    asked_ns = time.monotonic_ns()
    talk.host.signal(TERM)
    select.select([talk.host._control], [], [], DEADLINE_S)  # blocks: nothing is read meanwhile
    waking_ns = time.monotonic_ns()

    exit = await next_exit(talk)

    assert asked_ns <= exit.at_ns <= waking_ns


@pytest.mark.parametrize(
    ("end", "was_killed", "signum"),
    [
        (lambda host: host.signal(TERM), False, TERM),
        (lambda host: host.sweep(1, 5_000), True, KILL),
        (lambda host: host.arm_fence(0), True, KILL),
    ],
    ids=["signal", "sweep", "fence"],
)
async def test_exit_has_the_time_of_the_signal_before_it(
    talk: Conversation,
    output: Lines,
    end: Callable[[object], None],
    was_killed: bool,
    signum: int,
) -> None:
    """Signals to all, sweeps and the fence are dated; a SIGKILL among them is marked."""
    await talk.start(*PYTHON, PATIENT, out=output.write_fd)
    output.pids(1)
    asked_ns = time.monotonic_ns()
    end(talk.host)

    exit = await next_exit(talk)

    assert (exit.signal, exit.was_killed) == (signum, was_killed)
    assert exit.signalled_ns is not None
    assert asked_ns <= exit.signalled_ns <= exit.at_ns


async def test_worker_that_is_dead_by_then_was_not_signalled(
    talk: Conversation, witness: Witness
) -> None:
    """A stop that the agent sends before it has read of an exit does not explain that exit."""
    pid = await talk.start(*PYTHON, "import sys; sys.exit(3)")
    with contextlib.suppress(ProcessLookupError):  # it is dead, and its helper has seen that
        witness.watch(pid)
    assert witness.await_deaths() == []
    talk.host.signal(TERM)
    talk.host.sweep(1, 5_000)

    exit = await next_exit(talk)

    assert (exit.exit_code, exit.signalled_ns, exit.was_killed) == (3, None, False)
    assert await talk.next() == Clean(1)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_signal_for_one_worker_is_no_stop(
    talk: Conversation, output: Lines, is_alone: bool
) -> None:
    """What is forwarded, and what is sent to some workers, leaves their round as it is."""
    await talk.start(*PYTHON, PATIENT, out=output.write_fd)
    output.pids(1)
    talk.host.signal(TERM, None if is_alone else (1,), alone=is_alone)

    exit = await next_exit(talk)

    assert (exit.signal, exit.signalled_ns) == (TERM, None)


async def test_helper_that_dies_leaves_the_time_of_the_request(
    talk: Conversation, output: Lines
) -> None:
    """Of workers that die with their helper, the agent knows whether it had wanted them to end."""
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); " + PATIENT
    await talk.start(*PYTHON, stubborn, out=output.write_fd)
    output.pids(1)
    asked_ns = time.monotonic_ns()
    talk.host.signal(TERM)
    talk.host._process.kill()

    await talk.next()  # HelperLost
    exit = await next_exit(talk)

    assert exit.signalled_ns is not None
    assert asked_ns <= exit.signalled_ns <= exit.at_ns
