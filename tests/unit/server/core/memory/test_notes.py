"""Notes of a turn: what its records do not say, once, whatever happened in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from rallypoint.server.core.memory.changes import (
    find_job_changes,
    find_node_changes,
    with_job_changes,
    with_node_changes,
)
from rallypoint.server.core.memory.replay import JournalRecord, memory_of, replay
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import (
    EventsLogged,
    JobChanges,
    JobNoted,
    NodeNoted,
    Splice,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.node import Node
from rallypoint.server.core.model.round import Departure, Round, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.state import state
from rallypoint.server.core.state.state import State
from rallypoint.server.journal.codec.batches import decode_batch, encode_batch, encode_record
from rallypoint.server.shell import stepper
from rallypoint.server.shell.stepper import Stepper, Turn
from support.core.fake_agents import JOB, identity, worker_exit
from support.journal.full import Maker, names_of

NODES = 64
SPEC = JobSpec(min_nodes=NODES, max_nodes=NODES, max_restarts=3)
NEVER_ZERO = frozenset({"job_id", "run", "name", "start_failure"})
_Record = TypeVar("_Record", JobNoted, NodeNoted)


class Fleet:
    """Nodes whose messages all arrive in one turn each, and the journal of their coordinator."""

    def __init__(self, nodes: int = NODES) -> None:
        spec = replace(SPEC, min_nodes=nodes, max_nodes=nodes)
        self.state = State("c", 1_000, first_epoch=1_000, durable=True)
        self.records: list[JournalRecord] = []
        self._stepper = Stepper(self.state)
        self._sequences = [0] * nodes
        self._identities = [identity(f"n{n}", spec, session=n + 1) for n in range(nodes)]
        self._now_ms = 0

    def senders(self) -> list[inputs.Sender]:
        """Return the senders of everyone's next report."""
        self._sequences = [sequence + 1 for sequence in self._sequences]
        return [
            inputs.Sender(one.session, 1, 1_000, sequence)
            for one, sequence in zip(self._identities, self._sequences, strict=True)
        ]

    def hellos(self) -> list[inputs.Hello]:
        """Return everyone's first message."""
        return [
            inputs.Hello(
                identity=one,
                connection=1,
                epoch=0,
                run=0,
                coordinator_id="",
                coordinator_durable=False,
                acknowledged=0,
                revision=0,
                held=None,
                ready=inputs.ReadyPort(0, 2_000),
                draining=None,
            )
            for one in self._identities
        ]

    def turn(self, *arrived: inputs.Input) -> Counter[str]:
        """Take a turn; return how many records of each kind it has."""
        self._now_ms += 10
        turn = Turn()
        for one in arrived:
            assert self._stepper.step(one, self._now_ms, turn) is None
        self._stepper.close(turn)
        self.records += turn.records
        again = replay(self.records)
        again.since_epoch = again.epoch = 1_000
        again.events = self.state.events
        assert memory_of(self.state) == again
        kinds = (type(record) for record in turn.records if not isinstance(record, EventsLogged))
        return Counter(kind.__name__ for kind in kinds)


def test_number_of_records_does_not_depend_on_the_number_of_nodes() -> None:
    """Sealing, starting, failing, stopping and re-forming have a few records each."""
    fleet = Fleet()
    joined = fleet.turn(*fleet.hellos())
    assert {"JobSnapshot": 1, "NodeJoined": NODES} == joined

    started = fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in fleet.senders()))
    assert {"JobNoted": 1} == started
    assert {} == fleet.turn(*(inputs.Heartbeat(sender) for sender in fleet.senders()))
    fleet._sequences = [1] * NODES
    exit = worker_exit(1, said="ValueError: x")
    failed = fleet.turn(*(inputs.Exited(sender, 1, (exit,)) for sender in fleet.senders()))
    assert {"JobNoted": 1} == failed
    offer = inputs.ReadyPort(1, 3_000)
    senders = fleet.senders()
    assert {} == fleet.turn(*(inputs.Ready(sender, offer) for sender in senders[1:]))
    again = fleet.turn(inputs.Ready(senders[0], offer))
    assert {"JobNoted": 1} == again


def test_only_what_a_run_must_know_of_every_node_costs_a_record_each() -> None:
    """A success, and a departure."""
    fleet = Fleet()
    fleet.turn(*fleet.hellos())
    fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in fleet.senders()))

    first, *others = (inputs.Succeeded(sender, 1) for sender in fleet.senders())
    assert {"NodeNoted": NODES - 1, "JobNoted": 1} == fleet.turn(*others)
    assert {"JobNoted": 1} == fleet.turn(first)
    left = fleet.turn(*(inputs.Goodbye(sender, "") for sender in fleet.senders()))
    assert {"NodeRemoved": NODES, "JobNoted": 1} == left


def test_node_that_joins_and_leaves_in_a_turn_leaves_a_number() -> None:
    """Its place in the order of arrivals is not given again."""
    fleet = Fleet()
    fleet.turn(*fleet.hellos()[2:])
    hello = fleet.hellos()[0]
    sender = inputs.Sender(hello.identity.session, 1, 1_000, 1)

    kinds = fleet.turn(hello, inputs.Goodbye(sender, ""))

    assert {"JobNoted": 1} == kinds
    assert NODES - 1 == fleet.state.jobs[JobId(JOB)].next_arrival


def test_notes_that_cannot_be_found_are_replaced_by_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug in comparing costs bytes, and no job."""

    def strike(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(stepper, "note_changes", strike)
    fleet = Fleet(16)
    fleet.turn(*fleet.hellos())
    senders = fleet.senders()
    fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in senders))
    gone = fleet.turn(inputs.Goodbye(fleet.senders()[0], ""))

    assert {"JobSnapshot", "NodeRemoved"} <= gone.keys()


def test_what_failed_workers_wrote_is_noted_once() -> None:
    """Neither the verdict repeats it, nor a stall, which makes all failures older."""
    fleet = Fleet()
    fleet.turn(*fleet.hellos())
    fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in fleet.senders()))
    begin = len(fleet.records)

    for number, sender in enumerate(fleet.senders()):
        exit = worker_exit(1, said=f"{chr(97 + number % 26)} {number} " + 999 * "x")
        fleet.turn(inputs.Exited(sender, 1, (exit,)))
    sizes = [len(encode_record(record)) for record in fleet.records[begin:]]
    fleet.turn(inputs.Stalled(3_000))

    assert max(sizes) < 6_000
    assert len(encode_record(fleet.records[-1])) < 100


def test_job_that_is_deleted_and_created_in_a_turn_makes_others_forgotten_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The journal and the state remember the same of jobs that are gone."""
    monkeypatch.setattr(state, "FORGOTTEN_MAX", 2)
    fleet = Fleet(0)
    a, b, x, y = map(JobId, "abxy")
    for job_id in (x, y):
        fleet.turn(*end(job_id), inputs.DeleteJob(job_id))
    fleet.turn(*end(a), *end(b))

    fleet.turn(inputs.DeleteJob(a), inputs.CreateJob(a, SPEC), inputs.DeleteJob(b))

    assert [a, b] == list(fleet.state.gone)


def end(job_id: JobId) -> tuple[inputs.Input, ...]:
    """Let a run begin and end."""
    return inputs.CreateJob(job_id, SPEC), inputs.CancelJob(job_id, 0, "")


def departed(*names: str) -> tuple[Departure, ...]:
    return tuple(Departure(name, 1, RoundReason.NODE_LOST, "") for name in names)  # type: ignore[arg-type]


def test_lists_are_noted_by_what_is_added() -> None:
    """What is kept of them is a number, whatever is dropped at either end."""
    before = Job(JobId(JOB), 1, SPEC, 0, lost=departed("a", "b", "c"), verdict=None)
    for lost, splice, added in (
        (("a", "b", "c", "d"), Splice("lost", 0, 3, 0), ("d",)),
        (("c", "d"), Splice("lost", 2, 1, 0), ("d",)),
        (("a", "x"), Splice("lost", 0, 1, 0), ("x",)),
        (("a", "x", "c"), Splice("lost", 0, 1, 1), ("x",)),
        (("x", "a", "b", "c"), Splice("lost", 0, 0, 3), ("x",)),
        (("a", "c"), Splice("lost", 0, 1, 1), ()),
        (("a", "b"), Splice("lost", 0, 2, 0), ()),
        (("a", "a", "b", "c"), Splice("lost", 0, 1, 2), ("a",)),
    ):
        after = Job(JobId(JOB), 1, SPEC, 0, lost=departed(*lost), closed_ms=None)

        changes = find_job_changes(before, after)

        assert changes is not None
        assert ((splice,), departed(*added)) == (changes.spliced, changes.values.get("lost", ()))
        assert after == with_job_changes(before, changes)


@pytest.mark.parametrize(
    ("lost", "expected"),
    [(("x",), JobChanges({"lost": departed("x")})), ((), JobChanges(cleared=("lost",)))],
)
def test_list_of_which_nothing_is_kept_is_a_value(
    lost: tuple[str, ...], expected: JobChanges
) -> None:
    """Or it is cleared."""
    before = Job(JobId(JOB), 1, SPEC, 0, lost=departed("a", "b", "c"))
    after = Job(JobId(JOB), 1, SPEC, 0, lost=departed(*lost))

    assert expected == find_job_changes(before, after)
    assert after == with_job_changes(before, expected)


def test_fact_that_is_unknown_again_is_cleared() -> None:
    """Its name says so: without it the fact would not have changed."""
    before = Job(JobId(JOB), 1, SPEC, 5, empty_since_ms=7, closed_ms=0)
    after = Job(JobId(JOB), 1, SPEC, 6, empty_since_ms=None, closed_ms=0)

    changes = find_job_changes(before, after)

    assert JobChanges({"opened_ms": 6}, ("empty_since_ms",)) == changes
    assert after == with_job_changes(before, changes)
    assert find_job_changes(after, after) is None


@pytest.mark.parametrize("kind", [Job, Round, Node])
def test_every_durable_fact_is_noted(kind: Any) -> None:
    """A field that a struct gets is in the difference, unless it is marked as volatile."""
    maker = Maker()
    job = replace(maker.make(Job, ""), round=None)
    one = job if kind is Job else maker.make(kind, "")
    if kind is Round:  # one that can be judged
        one = replace(one, departures=departed("a"), stop_reason=RoundReason.NODE_LOST)
    for name in set(names_of(kind)) - {"round", "header", "members"}:  # these begin a round
        for value in others_than(getattr(one, name), maker, kind, name):
            changed = replace(one, **{name: value})
            if kind is Node:
                note = find_node_changes(one, changed)
                assert note is not None and changed == with_node_changes(one, stored(note)), name
                continue
            before, after = one, changed
            if kind is Round:
                before, after = replace(job, round=one), replace(job, round=changed)
            changes = find_job_changes(before, after)
            assert changes is not None, name
            kept = stored(JobNoted(after.job_id, changes))
            assert after == with_job_changes(before, kept.changes), name


def others_than(value: Any, maker: Maker, kind: Any, name: str) -> Iterator[Any]:
    """Yield another value of a fact, and zero, which protobuf leaves out, if there can be one."""
    if isinstance(value, Enum):
        yield next(one for one in type(value) if one is not value)
        return
    yield False if value is True else getattr(maker.make(kind, ""), name)
    if isinstance(value, int | str | tuple) and name not in NEVER_ZERO:
        yield type(value)()


def stored(record: _Record) -> _Record:
    """Return a record as a journal has it."""
    (found,) = decode_batch(encode_batch((record,), 0, 0)).records
    assert isinstance(found, type(record))
    return found
