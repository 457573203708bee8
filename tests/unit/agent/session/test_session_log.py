"""What an agent logs of its session: each change once, in the order in which it happened."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from rallypoint.agent.core.desired import Notice
from rallypoint.agent.core.held_round import HeldRound, LocalWorker, Stage
from rallypoint.agent.session.reminders import News, Reminder
from rallypoint.agent.session.session_log import BRIEF_WAITS, SessionLog
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2
from support.core.orders import run_order

WAITING = job_pb2.Waiting(kind=job_pb2.WAIT_KIND_NODES, ready_nodes=1, text="1 of 3")
Lines = list[MutableMapping[str, Any]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def new_log(*, is_standalone: bool = False) -> SessionLog:
    log = SessionLog("here:1", "job", "asked", is_standalone=is_standalone)
    log.on_welcome("given")
    return log


def events(lines: Lines) -> list[str]:
    return [line["event"] for line in lines]


def test_welcome_is_logged_before_what_it_brings(lines: Lines) -> None:
    """A spare first learns that it has reached the coordinator; then that it is a spare."""
    log = new_log()
    log.standby(is_spare=True)
    log.reached()
    log.standby(is_spare=True)

    assert ["coordinator_reached", "became_spare"] == events(lines)
    assert ("given", "job") == (lines[0]["node"], lines[0]["job"])
    assert lines[1]["why"] == "a round of job job already runs without this node"


def test_second_welcome_has_its_own_event(lines: Lines) -> None:
    """Only the first Welcome is the first contact; a built-in coordinator is no news."""
    log = new_log(is_standalone=True)
    log.reached()
    log.on_welcome("given")
    log.reached()

    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("coordinator_started", "debug"),
        ("coordinator_reached", "debug"),
        ("coordinator_reached_again", "info"),
    ]


def test_round_that_goes_on_is_logged_after_a_wait(lines: Lines) -> None:
    """The last line of a round that was adopted is not that the job waits."""
    log = new_log()
    log.round_began(run_order(number=3))
    log.round_continued(3)
    log.waiting(WAITING, now_ms=0)
    log.round_continued(3)
    log.round_continued(3)

    assert ["round_began", "wait_began", "round_continued"] == events(lines)[1:]


@pytest.mark.parametrize(
    ("first_rank", "workers", "ranks"), [(0, 1, "0"), (5, 1, "5"), (4, 4, "4-7")]
)
def test_ranks_are_a_range(lines: Lines, first_rank: int, workers: int, ranks: str) -> None:
    """One worker has one rank, and not a range from it to itself."""
    new_log().round_began(run_order(first_rank=first_rank, local_world_size=workers))

    assert ranks == lines[-1]["ranks"]


@pytest.mark.parametrize(
    ("master_addr", "reached_at", "event", "words"),
    [
        (
            "10.1.0.1",
            ("10.1.0.1",),
            "master_addr_replaced",
            {"master_addr": "10.1.0.1", "found": "10.0.0.1"},
        ),
        (
            "10.0.0.1",
            ("10.1.0.1", "10.2.0.1"),
            "master_addr_kept",
            {"master_addr": "10.0.0.1", "reached_at": "10.1.0.1,10.2.0.1"},
        ),
    ],
)
def test_other_address_is_logged_once(
    lines: Lines, master_addr: str, reached_at: tuple[str, ...], event: str, words: dict[str, str]
) -> None:
    """With both addresses and the flag; not again in the next round, unless they have changed."""
    log = new_log()
    log.found_address = "10.0.0.1"
    order = replace(run_order(master_addr=master_addr), reached_at=reached_at)
    log.round_began(order)
    log.round_began(order)
    log.round_began(run_order())
    log.node_round_began(replace(order, reached_at=(*reached_at, "10.3.0.1")))

    told = [line for line in lines if line["event"] == event]
    assert words.items() <= told[0].items()
    assert "--local-addr" in f"{told[0]}"
    assert 2 == len(told)


def test_chosen_address_needs_no_line(lines: Lines) -> None:
    """The operator knows how others reach it."""
    new_log().round_began(replace(run_order(), reached_at=("10.1.0.1",)))

    assert ["coordinator_reached", "round_began"] == events(lines)


def test_notice_is_logged_once_while_it_holds(lines: Lines) -> None:
    """A notice that comes again is not logged again, unless it was withdrawn in between."""
    log = new_log()
    log.reached()
    notice = Notice("drain", "b", "maintenance", 5_000)
    for notices in ((notice,), (notice,), (), (notice,)):
        log.notices(notices, now_ms=1_000)

    assert ["notice_received"] * 2 == events(lines)[1:]
    assert ("drain", "b", 4.0) == tuple(lines[1][name] for name in ("kind", "node", "within_s"))


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (Notice("growth", "", "", 31_000), "usually before the time is up"),
        (Notice("drain", "b", "maintenance", 31_000), "the round stops and re-forms"),
    ],
)
def test_notice_says_what_its_time_means(lines: Lines, notice: Notice, words: str) -> None:
    """A round that grows stops as soon as no more nodes arrive: its time is an upper limit."""
    new_log().notices((notice,), now_ms=1_000)

    assert words in lines[-1]["then"]
    assert (notice.kind == "growth") == ("usually" in lines[-1]["then"])
    assert lines[-1]["within_s"] == 30.0


@pytest.mark.parametrize(
    ("limits_threads", "workers", "logged"), [(True, 2, 1), (True, 1, 0), (False, 2, 0)]
)
def test_limit_of_threads_is_logged_once(
    lines: Lines, limits_threads: bool, workers: int, logged: int
) -> None:
    """Only if several workers share the node and the user has not chosen; not in every round."""
    log = SessionLog("here:1", "job", "asked", is_standalone=False, limits_threads=limits_threads)
    for number in (1, 2):
        log.round_began(run_order(number=number, local_world_size=workers))

    assert events(lines).count("threads_limited") == logged


def test_loss_of_contact_is_logged_again_now_and_then() -> None:
    """Failed attempts to reconnect are not news for 30 s; the next loss after a Welcome is."""
    log = new_log()
    found = [log.on_disconnected(ms) for ms in (0, 2_000, 29_999, 30_000, 32_000, 60_000)]

    assert found == [True, False, False, True, False, True]
    log.on_welcome("given")
    assert log.on_disconnected(61_000)


def test_coordinator_of_another_node_may_come_a_little_later() -> None:
    """Until then only an answer is worth a line; a session that is lost is worth one at once."""
    log = SessionLog("here:1", "job", "asked", is_standalone=False, patient_until_ms=5_000)
    assert not log.on_disconnected(100)
    assert log.on_disconnected(200, is_answered=True)
    assert [log.on_disconnected(ms) for ms in (4_999, 5_000, 30_200)] == [False, False, True]

    quiet = SessionLog("here:1", "job", "asked", is_standalone=False, patient_until_ms=5_000)
    assert [quiet.on_disconnected(ms) for ms in (0, 4_999, 5_000)] == [False, False, True]
    lost = SessionLog("here:1", "job", "asked", is_standalone=False, patient_until_ms=5_000)
    lost.on_welcome("given")
    assert lost.on_disconnected(10)


def test_reason_why_nothing_is_decided_is_logged_at_once() -> None:
    """The loss itself was logged with another one; after a Welcome, it is news again."""
    log = new_log()
    for _ in range(2):
        assert log.on_disconnected(0)
        assert [log.on_disconnected(ms, is_undecided=True) for ms in (500, 900)] == [True, False]
        assert not log.on_disconnected(1_000)
        log.on_welcome("given")


def test_wait_is_logged_again_now_and_then(lines: Lines) -> None:
    """A heartbeat tells the wait each second: a change is logged at once, the same after 30 s."""
    log = new_log()
    for now_ms in range(0, 60_001, 1_000):
        log.waiting(WAITING, now_ms)
    log.waiting(job_pb2.Waiting(kind=WAITING.kind, ready_nodes=2, text="2 of 3"), 60_500)

    assert [(line["event"], line["why"]) for line in lines] == [
        ("wait_began", "1 of 3"),
        ("wait_continued", "1 of 3"),
        ("wait_continued", "1 of 3"),
        ("wait_began", "2 of 3"),
    ]


def test_wait_after_a_round_is_logged(lines: Lines) -> None:
    """The same wait begins again when the round in between has ended."""
    log = new_log()
    log.waiting(WAITING, 0)
    log.round_began(run_order(number=1))
    log.waiting(WAITING, 1_000)

    assert events(lines) == ["wait_began", "coordinator_reached", "round_began", "wait_began"]


@pytest.mark.parametrize("kind", sorted(BRIEF_WAITS))
def test_brief_wait_is_logged_once_it_lasts(lines: Lines, kind: job_pb2.WaitKind.ValueType) -> None:
    """Nodes that stop or start take a moment at every restart; only a longer wait is news."""
    log, message = new_log(), job_pb2.Waiting(kind=kind, text="1 of 1 node still to stop")
    log.waiting(message, 0)
    log.waiting(message, 1_999)
    log.round_stopped(1, "a worker failed")
    log.waiting(message, 2_000)
    log.waiting(message, 3_999)

    assert "wait_began" not in events(lines)

    log.waiting(message, 4_000)
    log.waiting(message, 5_000)

    assert events(lines)[-1] == "wait_began"
    assert events(lines).count("wait_began") == 1


def test_lasting_wait_fills_no_log() -> None:
    """After 5 minutes a reminder comes every 5 minutes: 21 lines in the first hour."""
    reminder = Reminder()
    found = [reminder.judge("spare", now_ms) for now_ms in range(0, 3_600_000, 1_000)]

    assert found.count(News.NEW) == 1
    assert found.count(News.AGAIN) == 10 + 10
    assert found[330:600] == [News.KNOWN] * 270


def test_other_arguments_are_a_warning_once(lines: Lines) -> None:
    """It follows the first contact; a second Welcome brings nothing new."""
    log = new_log()
    log.on_welcome("given", "other")
    log.reached()
    log.on_welcome("given", "other")
    log.reached()

    assert ["coordinator_reached", "other_arguments_found", "coordinator_reached_again"] == events(
        lines
    )
    assert ("warning", "other") == (lines[1]["log_level"], lines[1]["other_node"])


def test_suspicion_is_logged_once(lines: Lines) -> None:
    """And once when it is over; not when its round was stopped, which is logged anyway."""
    hang = job_pb2.Waiting(kind=job_pb2.WAIT_KIND_HANG, text="no worker has made progress")
    suspected = agent_pb2.Acknowledgement(waiting=hang)
    log = new_log()
    log.round_began(run_order(number=3))
    for message in (agent_pb2.Acknowledgement(), suspected, suspected, agent_pb2.Acknowledgement()):
        log.acknowledged(message, 0)
    log.acknowledged(suspected, 0)
    log.round_stopped(3, "hung")
    log.acknowledged(agent_pb2.Acknowledgement(waiting=WAITING), 0)

    assert [
        *("hang_suspected", "hang_ended", "hang_suspected", "round_stopped", "wait_began")
    ] == events(lines)[2:]
    assert "no worker has made progress" == lines[2]["why"]


def test_standstill_is_logged_when_it_begins_and_ends(lines: Lines) -> None:
    """A stop ends it in silence."""
    log = new_log()
    running = HeldRound(run_order(), (LocalWorker(0), LocalWorker(1)))
    still = running.still(4_000)
    for before, held in (
        (running, running),
        (running, still),
        (still, still),
        (still, running),
        (still, still.moved(Stage.STOPPING)),
    ):
        log.progress(before, held, 9_500)

    assert [(line["event"], line["log_level"], line.get("still_s")) for line in lines] == [
        ("workers_stalled", "warning", 5.5),
        ("workers_progressed", "info", None),
    ]
