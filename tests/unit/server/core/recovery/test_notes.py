"""Notes of a turn: what its records do not say, once, whatever happened in between."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from rallypoint.server import stepper
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import (
    EventsLogged,
    Splice,
)
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.round import Departure, RoundReason
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.reads.changes import apply_changes, find_changes
from rallypoint.server.core.reads.replay import JournalRecord, memory_of, replay
from rallypoint.server.core.state.state import State
from rallypoint.server.stepper import Stepper, Turn
from support.core.fake_agents import JOB, identity, worker_exit

NODES = 64
SPEC = JobSpec(min_nodes=NODES, max_nodes=NODES, max_restarts=3)


class Fleet:
    """Nodes whose messages all arrive in one turn each, and the journal of their coordinator."""

    def __init__(self, nodes: int = NODES) -> None:
        spec = replace(SPEC, min_nodes=nodes, max_nodes=nodes)
        self.state = State("c", 1_000, first_epoch=1_000)
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
    assert {"RunOpened": 1, "RoundSealed": 1, "NodeJoined": NODES, "JobNoted": 1} == joined

    started = fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in fleet.senders()))
    assert {"JobNoted": 1} == started
    assert {} == fleet.turn(*(inputs.Heartbeat(sender) for sender in fleet.senders()))
    fleet._sequences = [1] * NODES
    exit = worker_exit(1, said="ValueError: x")
    failed = fleet.turn(*(inputs.Exited(sender, 1, (exit,)) for sender in fleet.senders()))
    assert {"RoundStopped": 1, "JobNoted": 1} == failed
    offer = inputs.ReadyPort(1, 3_000)
    senders = fleet.senders()
    assert {} == fleet.turn(*(inputs.Ready(sender, offer) for sender in senders[1:]))
    again = fleet.turn(inputs.Ready(senders[0], offer))
    begun = {"RoundSettled": 1, "NodeHealthChanged": 1, "RoundSealed": 1, "JobNoted": 1}
    assert begun == again


def test_only_what_a_run_must_know_of_every_node_costs_a_record_each() -> None:
    """A success, and a departure."""
    fleet = Fleet()
    fleet.turn(*fleet.hellos())
    fleet.turn(*(inputs.Started(sender, 1, (1,)) for sender in fleet.senders()))

    ended = fleet.turn(*(inputs.Succeeded(sender, 1) for sender in fleet.senders()))
    assert {"NodeSucceeded": NODES, "RunClosed": 1, "JobNoted": 1} == ended
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

    assert {"RoundStopped", "JobSnapshot", "NodeRemoved"} <= gone.keys()


def departed(*names: str) -> tuple[Departure, ...]:
    return tuple(Departure(name, 1, RoundReason.NODE_LOST, "") for name in names)  # type: ignore[arg-type]


def test_lists_are_noted_by_what_is_added() -> None:
    """What is kept of them is a number, whatever is dropped at either end."""
    before = Job(JobId(JOB), 1, SPEC, 0, lost=departed("a", "b", "c"), verdict=None)
    for lost, splice, added in (
        (("a", "b", "c", "d"), Splice("lost", 0, 3), ("d",)),
        (("c", "d"), Splice("lost", 2, 1), ("d",)),
        (("a", "x"), Splice("lost", 0, 1), ("x",)),
        (("x",), Splice("lost", 3, 0), ("x",)),
        ((), Splice("lost", 0, 0), ()),
        (("a", "b"), Splice("lost", 0, 2), ()),
    ):
        after = Job(JobId(JOB), 1, SPEC, 0, lost=departed(*lost), closed_ms=None)

        changes = find_changes(before, after)

        assert changes is not None
        assert ((splice,), departed(*added)) == (changes.spliced, changes.lost)
        assert after == apply_changes(before, changes)


def test_fact_that_is_unknown_again_is_cleared() -> None:
    """Its name says so: without it the fact would not have changed."""
    before = Job(JobId(JOB), 1, SPEC, 5, empty_since_ms=7, closed_ms=0)
    after = Job(JobId(JOB), 1, SPEC, 0, empty_since_ms=None, closed_ms=0)

    changes = find_changes(before, after)

    assert changes is not None
    assert (("empty_since_ms",), 0, None) == (changes.cleared, changes.opened_ms, changes.closed_ms)
    assert after == apply_changes(before, changes)
    assert find_changes(after, after) is None
