"""The helper's fence, a dead man's switch: it kills everything at a time that the agent moves."""

import errno
import signal
import time

from rallypoint.agent.helper.events import SpawnFailed
from support.processes.processes import PYTHON, STUBBORN_TREE, Conversation, Lines, Witness, exited


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


async def test_fence_kills_everything_when_its_instant_passes(
    talk: Conversation, output: Lines, witness: Witness
) -> None:
    """At the time of the fence, and not before, all workers die, and no other starts."""
    pid = await talk.start(*PYTHON, STUBBORN_TREE, out=output.write_fd)
    witness.watch(*output.pids(3).values())
    at_ms = now_ms() + 200
    talk.host.arm_fence(at_ms)

    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    assert now_ms() >= at_ms
    assert witness.await_deaths() == []
    talk.ask(*PYTHON, "pass", worker_id=2)
    refused = await talk.next()
    assert isinstance(refused, SpawnFailed) and refused.errno == errno.EBUSY


async def test_fence_that_is_moved_in_time_kills_nobody(talk: Conversation) -> None:
    """Only the latest time of the fence counts, even if it is past already."""
    pid = await talk.start(*PYTHON, "import signal; signal.pause()")
    talk.host.arm_fence(now_ms() + 100)
    talk.host.arm_fence(now_ms() + 60_000)
    second = await talk.start(*PYTHON, "import time; time.sleep(0.3)", worker_id=2)
    assert await talk.next() == exited(2, second, 0, None)

    talk.host.arm_fence(now_ms() - 1)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
    talk.host.arm_fence(now_ms() + 60_000)
    third = await talk.start(*PYTHON, "pass", worker_id=3)
    assert await talk.next() == exited(3, third, 0, None)


async def test_fence_that_is_taken_back_kills_nobody(talk: Conversation) -> None:
    """Workers live on after its time, and others start."""
    pid = await talk.start(*PYTHON, "import signal; signal.pause()")
    at_ms = now_ms() + 100
    talk.host.arm_fence(at_ms)
    talk.host.arm_fence(None)
    second = await talk.start(*PYTHON, "import time; time.sleep(0.3)", worker_id=2)

    assert await talk.next() == exited(2, second, 0, None)
    assert now_ms() > at_ms
    talk.host.signal(signal.SIGKILL)
    assert await talk.next() == exited(1, pid, None, signal.SIGKILL)
