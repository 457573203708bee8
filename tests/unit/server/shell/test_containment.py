"""A bug in the core ends the job that it strikes, with a report, and no other job.

A bug in what carries out a decision ends at most the job of the decision.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.api.events.waits import EventWaits
from rallypoint.server.api.jobs.watchers import Watchers
from rallypoint.server.api.keys.waits import KeyWaits
from rallypoint.server.core import step as core
from rallypoint.server.core.containment import evict
from rallypoint.server.core.memory.replay import memory_of, replay
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.errors import BrokenInvariant
from rallypoint.server.core.messages.records import EventsLogged, JobForgotten
from rallypoint.server.core.messages.refusals import RefusalKind
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
from rallypoint.server.core.model.verdict import VerdictCause
from rallypoint.server.core.state import state as states
from rallypoint.server.core.state.deadlines import DeadlineKind
from rallypoint.server.journal import compaction
from rallypoint.server.shell import coordinator, stepper
from rallypoint.server.shell.announcements import Announcements
from rallypoint.server.shell.coordinator import CoordinatorEnded, InputRefused
from support.core.shell import SPEC, Peer, Shell, running_shell

BAD, GOOD = JobId("bad"), JobId("good")
KEY = BarrierKey(BAD, 1, 0, "b")
CODE_INTERNAL = grpc.StatusCode.INTERNAL.value[0]


class Planted(Exception):
    """The bug. Its text must reach no peer."""


def strike(*_: object, **__: object) -> None:
    raise Planted("private text")


def plant(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, is_struck: Callable[..., bool]
) -> None:
    """Let a function fail when `is_struck` holds for its arguments."""
    genuine = getattr(where, name)

    def planted(*args: Any, **kwargs: Any) -> Any:
        if is_struck(*args, **kwargs):
            strike()
        return genuine(*args, **kwargs)

    monkeypatch.setattr(where, name, planted)


async def check_others(shell: Shell, good: Peer) -> None:
    """Check that the other job runs, its agent is heard, and the journal fits the state."""
    before = good.outbox.acknowledged
    await shell.coordinator.submit(inputs.Draining(good.next_sender(), 60_000, "maintenance"))
    await shell.settle()

    assert before + 1 == good.outbox.acknowledged
    assert good.outbox.end is None
    assert isinstance(good.desired, DesiredRun)
    job = shell.job(GOOD)
    assert job is not None and job.phase is Phase.RUNNING
    assert memory_of(shell.state) == replay((await shell.journal.load()).records)


def check_ended(shell: Shell) -> str:
    """Check that the struck job failed with a report; return the report."""
    job = shell.job(BAD)
    assert job is not None and job.verdict is not None
    assert (Phase.CLOSED, Outcome.FAILED) == (job.phase, job.outcome)
    assert VerdictCause.INTERNAL is job.verdict.cause
    assert "private text" not in job.verdict.text
    return job.verdict.text


def arrive(request_id: str, name: str, count: int) -> inputs.Arrive:
    """Return the arrival of a free name at the barrier of the struck job."""
    who, claim = (
        Participant(ParticipantKind.NAME, 0, name),
        inputs.Claim(BAD, 1, 1, "t", is_signed=True),
    )
    return inputs.Arrive(claim, KEY, who, Expected(count), 60_000, request_id)


def incidents(lines: list[Any]) -> list[str]:
    """Return the ids of the internal errors that were logged with a traceback."""
    return [line["incident"] for line in lines if line.get("exc_info")]


@pytest.fixture(autouse=True)
def lines() -> Iterator[list[Any]]:
    """Return the events that are logged, as they come.

    Also for tests that read none: to render an error with all that its frames hold takes seconds.
    """
    with capture_logs() as lines:
        yield lines


async def test_step_that_fails_ends_its_job(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """Its agents get the outcome, and the report names the incident in the log."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        plant(
            monkeypatch,
            core,
            "receive_report",
            lambda _, report: report.sender.session == bad.identity.session,
        )
        await shell.coordinator.submit(inputs.Succeeded(bad.next_sender(), 1))
        await shell.settle()
        report = check_ended(shell)
        (incident,) = incidents(lines)

        assert incident in report
        assert re.fullmatch("[0-9a-f]{8}", incident)
        assert isinstance(bad.desired, DesiredFinished)
        await check_others(shell, good)


async def test_poisonous_hello_is_refused_every_time(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """The same Hello after that ends nothing more; each refusal names its incident."""
    plant(monkeypatch, core, "receive_hello", lambda _, hello: hello.identity.job_id == BAD)
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), shell.peer(BAD, 2)
        for _ in range(3):
            await bad.hello()
            await shell.settle()
            assert bad.outbox.end is not None
            assert CODE_INTERNAL == bad.outbox.end.code
            assert incidents(lines)[-1] in bad.outbox.end.message

        assert 3 == len(incidents(lines))
        assert shell.job(BAD) is None
        await check_others(shell, good)


@pytest.mark.parametrize(
    ("where", "name"),
    [(states, "_apply_node"), (states, "_apply_job")],
    ids=["first change", "last change"],
)
async def test_half_applied_change_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str
) -> None:
    """The job's entries are removed, and its returning agent gets the outcome."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        with monkeypatch.context() as patch:
            key = {"_apply_node": bad.identity.session, "_apply_job": BAD}[name]
            plant(patch, where, name, lambda state, one, _: one == key)
            await shell.coordinator.submit(inputs.Succeeded(bad.next_sender(), 1))
            await shell.settle()
        check_ended(shell)

        assert bad.outbox.end is not None
        assert bad.identity.session not in shell.state.nodes
        assert not [key for key in shell.state.index if key[0] == BAD]
        assert not [k for k, _ in shell.state.deadlines.items() if k[1] == bad.identity.session]
        await bad.hello(ready=False)
        await shell.settle()
        assert isinstance(bad.desired, DesiredFinished)
        await check_others(shell, good)


@pytest.mark.parametrize("error", [Planted("private text"), BrokenInvariant(BAD, "is off")])
async def test_check_that_fails_ends_its_job(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whether an invariant is broken or the check itself is."""
    failures = [error]

    def check(state: object, delta: states.Delta) -> None:
        if BAD in delta.jobs and failures:
            raise failures.pop()

    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        monkeypatch.setattr(stepper, "check_touched", check)
        await shell.coordinator.submit(inputs.StartFailed(bad.next_sender(), 1, "no memory"))
        await shell.settle()

        check_ended(shell)
        assert isinstance(bad.desired, DesiredFinished)
        await check_others(shell, good)


async def test_job_that_cannot_even_end_is_removed(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """When the step that ends the job fails too, the job's state is dropped."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        plant(monkeypatch, core, "advance", lambda draft, job_id: job_id == BAD)
        await shell.coordinator.submit(inputs.Succeeded(bad.next_sender(), 1))
        await shell.settle()
        check_ended(shell)

        assert 2 == len(incidents(lines))
        assert bad.outbox.end is not None
        assert bad.identity.session not in shell.state.nodes
        await check_others(shell, good)


async def test_barrier_of_a_removed_job_breaks(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """Workers that wait there learn it, also when the request of one has struck."""
    async with running_shell() as shell:
        good, _ = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        await shell.coordinator.submit(arrive("ra", "a", 3))
        await shell.settle()
        assert KEY in shell.state.barriers[BAD]
        plant(monkeypatch, core, "receive_arrival", lambda draft, one: one.job_id == BAD)
        plant(monkeypatch, core, "advance", lambda draft, job_id: job_id == BAD)
        await shell.coordinator.submit(arrive("rb", "b", 3))
        await shell.settle()
        check_ended(shell)

        assert 2 == len(incidents(lines))
        assert BAD not in shell.state.barriers
        assert not [one for one in shell.state.arrivals if one.job_id == BAD]
        await check_others(shell, good)


async def test_half_made_or_half_deleted_job_leaves_what_was_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No number of a job that was deleted comes again."""
    create, delete = inputs.CreateJob(BAD, SPEC), inputs.DeleteJob(BAD)
    async with running_shell() as shell:
        good = await shell.join(GOOD, 1)
        for request, is_struck in (
            *((create, False), (inputs.CancelJob(BAD, 0, ""), False), (delete, True)),
            *((delete, False), (create, True)),
        ):
            with monkeypatch.context() as patch:
                if is_struck:
                    plant(patch, states, "_apply_job", lambda state, job_id, job: job_id == BAD)
                await shell.coordinator.submit(request)
                await shell.settle()
            if is_struck:
                await check_others(shell, good)

        assert shell.job(BAD) is None
        assert 1 == shell.state.gone[BAD].ended_run


async def test_job_that_has_vanished_is_logged_as_deleted() -> None:
    """Once: readers of events learn that nothing follows."""
    async with running_shell() as shell:
        await shell.join(BAD, 2)
        del shell.state.jobs[BAD]
        first = evict(shell.state, BAD, (), 1_000, "lost")
        again = evict(shell.state, BAD, (), 1_000, "lost")
        shell.state.holding.jobs = len(shell.state.jobs)

    assert [JobForgotten, EventsLogged] == [type(record) for record in first.records]
    assert [JobForgotten] == [type(record) for record in again.records]


@pytest.mark.parametrize("name", ["_expire_session", "_expire_job", "end_quarantines"])
async def test_deadline_that_fails_does_not_come_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its job ends, and the coordinator continues with the next deadline."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        plant(monkeypatch, core, name, lambda *_: True)
        session = bad.identity.session
        await shell.expire(
            *{
                "_expire_session": (DeadlineKind.LEASE, session),
                "_expire_job": (DeadlineKind.GROWTH, BAD),
                "end_quarantines": (DeadlineKind.QUARANTINE_END, BAD),
            }[name]
        )
        check_ended(shell)

        first = shell.state.deadlines.first()
        assert first is not None and first[0] > 0
        await check_others(shell, good)


async def test_one_job_that_cannot_be_adopted_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the startup window closes, every job is looked at by itself."""
    plant(monkeypatch, core, "adopt", lambda draft, job_id: job_id == BAD)
    async with running_shell() as shell:
        shell.state.window_until_ms = 1 << 40
        bad, good = shell.peer(BAD, 2), shell.peer(GOOD, 1)
        for peer in (bad, good):
            await peer.hello()
        await shell.settle()
        assert not isinstance(good.desired, DesiredRun)
        await shell.expire(DeadlineKind.WINDOW, "")
        async with asyncio.timeout(5):
            while not isinstance(good.desired, DesiredRun):  # each adoption may be in its own turn
                await shell.settle()
        await good.start()
        await shell.settle()

        check_ended(shell)
        await check_others(shell, good)


async def test_request_that_fails_is_answered(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """So are the other readers of the turn."""
    plant(monkeypatch, core, "operate", lambda draft, change: change.job_id == BAD)
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        change = inputs.Cordon(BAD, NodeName(bad.identity.name), "bad disk")
        with pytest.raises(InputRefused) as caught:
            await shell.coordinator.ask(change, lambda state, now_ms: None)

        facts = (("incident", incidents(lines)[0]),)
        assert (RefusalKind.INTERNAL, facts) == (
            caught.value.refusal.kind,
            caught.value.refusal.facts,
        )
        check_ended(shell)
        await check_others(shell, good)


def outbox_put(outbox: Any, effect: Any) -> bool:
    return bool(outbox.session == f"{2:032x}")


async def test_outbox_that_fails_ends_its_session(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """The other sessions of the turn get their messages."""
    from rallypoint.server.agents import outbox

    async with running_shell() as shell:
        plant(monkeypatch, outbox, "_put", outbox_put)
        bad, good = await shell.join(BAD, 2), await shell.join(GOOD, 1)

        assert bad.outbox.end is not None
        assert CODE_INTERNAL == bad.outbox.end.code
        assert incidents(lines)[0] in bad.outbox.end.message
        await check_others(shell, good)


async def test_snapshot_that_fails_is_postponed(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any]
) -> None:
    """The journal grows, and its compaction is tried again later, not in every turn."""
    monkeypatch.setattr(compaction, "COMPACT_AFTER", 2)
    async with running_shell() as shell:
        with monkeypatch.context() as patch:
            plant(patch, coordinator, "memory_of", lambda _: True)
            good = await shell.join(GOOD, 1)
            await check_others(shell, good)
            await shell.join(BAD, 2)
            failed = len(incidents(lines))
        length = shell.journal.length
        for number in range(3, 9):
            await shell.join(f"job{number}", number)

        assert 1 <= failed < length
        assert shell.journal.length < length + 6 * 2
        await check_others(shell, good)


# --- What carries out decisions -------------------------------------------------------------------


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


def plant_for_bad(monkeypatch: pytest.MonkeyPatch, where: type, name: str) -> None:
    """Let a method fail for the struck job: its argument is it, or has it, or is of it."""

    def is_bad(_: object, subject: Any, *rest: object) -> bool:
        found = getattr(getattr(subject, "key", subject), "job_id", subject)
        return bool(found == BAD or (not isinstance(found, str) and BAD in found))

    plant(monkeypatch, where, name, is_bad)


@pytest.mark.parametrize(
    ("where", "name", "act"),
    [
        (BarrierWaits, "_answer", release),
        (KeyWaits, "note", write),
        (KeyWaits, "note_job", cordon),
    ],
)
async def test_bug_in_what_workers_wait_for_ends_their_job(
    monkeypatch: pytest.MonkeyPatch,
    lines: list[Any],
    where: type,
    name: str,
    act: Callable[[Shell], Any],
) -> None:
    """Its verdict names the incident in the log; no other job notices anything."""
    async with running_shell() as shell:
        good, bad = await shell.join(GOOD, 1), await shell.join(BAD, 2)
        plant_for_bad(monkeypatch, where, name)
        await act(shell)
        await shell.settle()
        await shell.settle()

        assert incidents(lines)[0] in check_ended(shell)
        assert isinstance(bad.desired, DesiredFinished)
        await check_others(shell, good)


@pytest.mark.parametrize(("where", "name"), [(Watchers, "note_job"), (EventWaits, "note")])
async def test_bug_in_what_readers_watch_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, lines: list[Any], where: type, name: str
) -> None:
    """It is logged; the next change wakes them."""
    async with running_shell() as shell:
        good = await shell.join(GOOD, 1)
        await shell.join(BAD, 2)
        plant_for_bad(monkeypatch, where, name)
        await cordon(shell)
        await shell.settle()
        await shell.settle()
        job = shell.job(BAD)

        assert job is not None and job.phase is Phase.RUNNING
        assert incidents(lines)
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
        plant_for_bad(monkeypatch, BarrierWaits, "_answer")
        await shell.coordinator.submit(arrive("r2", "b", 2))


async def test_bug_in_a_log_line_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be logged has still happened."""

    async with running_shell() as shell:
        good = await shell.join(GOOD, 1)
        monkeypatch.setattr(Announcements, "write", strike)
        monkeypatch.setattr("rallypoint.server.shell.coordinator._log_refusal", strike)
        shell.coordinator._announcements = Announcements(shell.state, lambda input: True)
        await shell.coordinator.submit(inputs.Cordon(GOOD, NodeName("n1"), "test"))
        await shell.coordinator.submit(inputs.Cordon(GOOD, NodeName("nobody"), "test"))
        await shell.settle()
        await check_others(shell, good)
