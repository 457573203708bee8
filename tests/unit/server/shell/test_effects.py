"""A bug in what carries out a decision ends at most the job of the decision, never the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.api.events.waits import EventWaits
from rallypoint.server.api.jobs.watchers import Watchers
from rallypoint.server.api.keys.waits import KeyWaits
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.model.barrier import (
    BarrierKey,
    Expected,
    Participant,
    ParticipantKind,
)
from rallypoint.server.core.model.desired import DesiredFinished, DesiredRun
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.keyspace import Write
from rallypoint.server.core.model.phase import Outcome, Phase
from rallypoint.server.shell.announcements import Announcements
from rallypoint.server.shell.coordinator import CoordinatorEnded
from support.core.shell import Peer, Shell, running_shell

BAD, GOOD = JobId("bad"), JobId("good")
KEY = BarrierKey(BAD, 1, 0, "b")


def arrive(request_id: str, name: str, count: int) -> inputs.Arrive:
    """Return the arrival of a free name at the barrier of the struck job."""
    who, claim = (
        Participant(ParticipantKind.NAME, 0, name),
        inputs.Claim(BAD, 1, 1, "t", is_signed=True),
    )
    return inputs.Arrive(claim, KEY, who, Expected(count), 60_000, request_id)


async def release(shell: Shell) -> None:
    """Release a barrier."""
    await shell.coordinator.submit(arrive("r1", "a", 1))


async def write(shell: Shell) -> None:
    """Write a key."""
    claim = inputs.Claim(BAD, 1, 1, "t", is_signed=True)
    request = inputs.WriteKeys(claim, 0, (Write("k", b"v"),), "r1", "a1")
    await shell.coordinator.submit(request)


async def cordon(shell: Shell) -> None:
    """Change the job in a way that its readers see."""
    await shell.coordinator.submit(inputs.Cordon(BAD, NodeName("n2"), "test"))


def plant(monkeypatch: pytest.MonkeyPatch, where: type, name: str, arg: int) -> None:
    """Let a method fail for the struck job: it is, or is in, or is of this argument."""
    genuine = getattr(where, name)

    def planted(*args: Any) -> Any:
        subject = args[arg]
        found = getattr(getattr(subject, "key", subject), "job_id", subject)
        if found == BAD or (not isinstance(found, str) and BAD in found):
            raise RuntimeError("private text")
        return genuine(*args)

    monkeypatch.setattr(where, name, planted)


async def check_others(shell: Shell, good: Peer) -> None:
    """Check that the other job runs, and its agent is heard."""
    before = good.outbox.acknowledged
    await shell.coordinator.submit(inputs.Draining(good.next_sender(), 60_000, "maintenance"))
    await shell.settle()

    assert before + 1 == good.outbox.acknowledged
    assert isinstance(good.desired, DesiredRun)


@pytest.fixture(autouse=True)
def lines() -> Iterator[list[Any]]:
    """Return the events that are logged."""
    with capture_logs() as lines:
        yield lines


@pytest.mark.parametrize(
    ("where", "name", "arg", "act"),
    [
        (BarrierWaits, "_answer", 1, release),
        (KeyWaits, "note", 1, write),
        (KeyWaits, "note_job", 1, cordon),
    ],
)
async def test_bug_in_what_workers_wait_for_ends_their_job(
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Any],
    where: type,
    name: str,
    arg: int,
    act: Callable[[Shell], Any],
) -> None:
    """Its verdict names the incident in the log; no other job notices anything."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        plant(monkeypatch, where, name, arg)
        await act(shell)
        await shell.settle()
        await shell.settle()
        job = shell.job(BAD)

        assert job is not None and job.verdict is not None
        assert (Phase.CLOSED, Outcome.FAILED) == (job.phase, job.outcome)
        incidents = [line["incident"] for line in lines if line.get("exc_info")]
        assert incidents[0] in job.verdict.text
        assert "private text" not in job.verdict.text
        assert isinstance(bad.desired, DesiredFinished)
        await check_others(shell, good)


@pytest.mark.parametrize(
    ("where", "name", "arg"), [(Watchers, "note_job", 1), (EventWaits, "note", 1)]
)
async def test_bug_in_what_readers_watch_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any], where: type, name: str, arg: int
) -> None:
    """It is logged; the next change wakes them."""
    async with running_shell() as shell:
        good = await shell.join(GOOD, 1)
        await shell.join(BAD, 2)
        plant(monkeypatch, where, name, arg)
        await cordon(shell)
        await shell.settle()
        await shell.settle()
        job = shell.job(BAD)

        assert job is not None and job.phase is Phase.RUNNING
        assert any(line.get("exc_info") for line in lines)
        await check_others(shell, good)


async def test_caller_at_a_barrier_that_cannot_be_ended_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks again, and learns that its run is over."""
    async with asyncio.timeout(60), running_shell() as shell, asyncio.TaskGroup() as tasks:
        await shell.join(BAD, 2)
        await shell.coordinator.submit(arrive("r1", "a", 2))
        await shell.settle()

        async def wait() -> None:
            with pytest.raises(CoordinatorEnded):
                await shell.barriers.find(KEY, 1).end()

        tasks.create_task(wait())
        await asyncio.sleep(0)
        plant(monkeypatch, BarrierWaits, "_answer", 1)
        await shell.coordinator.submit(arrive("r2", "b", 2))


async def test_bug_in_a_log_line_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be logged has still happened."""

    def strike(*_: object) -> None:
        raise TypeError("got multiple values for argument 'event'")

    async with running_shell() as shell:
        good = await shell.join(GOOD, 1)
        monkeypatch.setattr(Announcements, "write", strike)
        monkeypatch.setattr("rallypoint.server.shell.coordinator._log_refusal", strike)
        shell.coordinator._announcements = Announcements(shell.state, lambda input: True)
        await shell.coordinator.submit(inputs.Cordon(GOOD, NodeName("n1"), "test"))
        await shell.coordinator.submit(inputs.Cordon(GOOD, NodeName("nobody"), "test"))
        await shell.settle()
        await check_others(shell, good)
