"""The events that an agent records, and when."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from rallypoint.agent.core.held_round import ErrorRecord, HeldRound, LocalExit, LocalWorker, Stage
from rallypoint.agent.torchelastic.events import (
    About,
    Event,
    EventLog,
    Moment,
    raw_error,
    worker_state,
)
from rallypoint.agent.torchelastic.last_round import last_round
from support.core.orders import run_order

ORDER = run_order(
    number=3,
    world_size=8,
    group_world_size=2,
    restart_count=1,
    group_rank=1,
    first_rank=4,
    first_role_rank=4,
    role_world_size=8,
    max_restarts=2,
)
BEGUN = HeldRound(ORDER, (LocalWorker(0), LocalWorker(1)))
RUNNING = replace(
    BEGUN, workers=(LocalWorker(0, 4_000, 10), LocalWorker(1, 4_001, 10)), stage=Stage.RUNNING
)
RECORD = ErrorRecord("ValueError: bad", "Traceback", 50, 1_763_730_000)


def ended(
    code: int | None = None, signal: int | None = None, *, signalled: bool = False, **facts: object
) -> LocalWorker:
    exit = LocalExit(code, signal, 90, signalled, None, "")
    return LocalWorker(0, 4_000, 10, replace(exit, **facts))


NEVER_STARTED = LocalWorker(0, 0, 0, LocalExit(127, None, 90, True, None, "no such file"))


@pytest.mark.parametrize(
    ("claim", "worker", "state", "has_failed", "was_stopped"),
    [
        ("done", ended(0), "SUCCEEDED", False, False),
        ("failed", ended(1), "FAILED", True, False),
        ("killed from outside", ended(signal=9), "FAILED", True, False),
        ("stopped", ended(signal=15, signalled=True), "TERMINATED", False, True),
        ("stopped, and ended well", ended(0, signalled=True), "TERMINATED", False, True),
        ("lives", LocalWorker(0, 4_000, 10), "TERMINATED", False, True),
        (
            "had failed before it was stopped",
            ended(signal=15, signalled=True, error=RECORD, signalled_before_ms=20),
            "FAILED",
            True,
            False,
        ),
        (
            "failed of being stopped",
            ended(1, signalled=True, error=RECORD, signalled_before_ms=80),
            "TERMINATED",
            False,
            True,
        ),
        ("could not be started", NEVER_STARTED, "FAILED", True, False),
    ],
)
def test_what_became_of_a_worker(
    claim: str, worker: LocalWorker, state: str, has_failed: bool, was_stopped: bool
) -> None:
    """A worker that the agent stopped has not failed, unless it had failed before."""
    last = last_round("a", "host", replace(BEGUN, workers=(worker,)), 100)

    assert worker_state(worker) == state, claim
    assert (len(last.failed), len(last.stopped)) == (has_failed, was_stopped), claim
    assert all(message.rank == 4 for message in (*last.failed, *last.stopped))


def test_errors_are_in_torchs_form() -> None:
    """A failed worker's error is its record in torch's form, or else its last output."""
    extra = {"py_callstack": "Traceback", "timestamp": "1763730000"}
    whole = {"message": {"message": "ValueError: bad", "extraInfo": extra}}

    assert json.loads(raw_error(ended(1, error=RECORD)) or "") == whole
    timeless = replace(RECORD, time_s=None)
    found = json.loads(raw_error(ended(1, error=timeless, failed_ms=5_900)) or "")
    assert found["message"]["extraInfo"]["timestamp"] == "5"
    assert json.loads(raw_error(ended(1, stderr_tail="words")) or "") == {"message": "words"}
    assert json.loads(raw_error(ended(1)) or "") == {"message": "<NONE>"}
    assert raw_error(ended(0)) is None
    assert raw_error(ended(signal=15, signalled=True)) is None


class Recorder:
    """An event log with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.events: list[Event] = []
        about = About("job", "default", "host", "train.py")
        self.log = EventLog(about, self.events.append, self.moment)

    def moment(self) -> Moment:
        return Moment(1_763_730_000_000 + self.now_ms, self.now_ms)

    def take(self) -> list[tuple[object, ...]]:
        """Return state, rank, duration, run time and error of the events since the last call."""
        found = []
        for event in self.events:
            metadata = event["metadata"]
            assert isinstance(metadata, dict)
            names = ("state", "global_rank", "duration_ms", "total_run_time", "raw_error")
            found.append(tuple(metadata[name] for name in names))
        self.events.clear()
        return found


def test_rounds_are_told_as_they_go() -> None:
    """A rendezvous lasts from the end of a round to the order of the next; workers start once."""
    recorder = Recorder()
    for now_ms, held in (
        (0, None),
        (1_500, BEGUN),
        (1_600, replace(BEGUN, workers=(RUNNING.workers[0], LocalWorker(1)))),
        (1_700, RUNNING),
        (1_800, replace(RUNNING, workers=(ended(0), RUNNING.workers[1]))),
        (2_000, replace(RUNNING, stage=Stage.STOPPING)),
        (3_000, None),
        (3_200, None),
        (7_000, replace(BEGUN, order=replace(ORDER, header=replace(ORDER.header, number=4)))),
    ):
        recorder.now_ms = now_ms
        recorder.log.saw(held)

    assert recorder.take() == [
        ("RENDEZVOUS", None, 1_500, 1, None),
        ("START", 4, None, 1, None),
        ("START", 5, None, 1, None),
        ("RENDEZVOUS", None, 4_000, 7, None),
    ]


@pytest.mark.parametrize(
    ("is_orderly", "expected"), [(True, ("SUCCEEDED", None)), (False, ("FAILED", "signal 15"))]
)
def test_end_tells_of_every_worker(is_orderly: bool, expected: tuple[str, str | None]) -> None:
    """The end records the workers of the last round, even after it is gone, then the agent."""
    recorder = Recorder()
    recorder.log.saw(RUNNING)
    recorder.log.saw(replace(RUNNING, workers=(ended(0), replace(ended(3), local_rank=1))))
    recorder.log.saw(None)
    recorder.take()
    recorder.log.ended(is_orderly=is_orderly, text="signal 15")

    assert recorder.take() == [
        ("SUCCEEDED", 4, None, 0, None),
        ("FAILED", 5, None, 0, '{"message": "<NONE>"}'),
        (expected[0], None, None, 0, expected[1]),
    ]


def test_agent_that_never_had_a_round() -> None:
    """An agent that reached no coordinator records its end without a round."""
    recorder = Recorder()
    recorder.log.saw(None)
    recorder.log.ended(is_orderly=False, text="no coordinator answered")

    assert recorder.events[0]["timestamp"] == 1_763_730_000_000
    assert recorder.take() == [("FAILED", None, None, 0, "no coordinator answered")]
