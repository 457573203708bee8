"""What the core emits: every kind, with the facts that readers need, and none without a kind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

import rallypoint.server.core as core
from rallypoint.server.api.events.views import ARMS, KINDS, event_message
from rallypoint.server.core.memory.replay import memory_of, replay, snapshot
from rallypoint.server.core.memory.weights import weight_of
from rallypoint.server.core.messages import inputs
from rallypoint.server.core.messages.records import EventsLogged
from rallypoint.server.core.model.events import EVENTS, Event, EventKind
from rallypoint.server.core.model.ids import JobId, NodeName
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.v1 import event_service_pb2 as events_pb2
from support.core.coordinator import Bench
from support.core.fake_agents import JOB
from support.core.rounds import pair

ROOT = Path(next(iter(core.__path__)))


def emitted() -> Iterator[tuple[str, set[str]]]:
    """Yield where the core emits an event, and the names that it may have there."""
    for path in sorted(ROOT.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and ast.unparse(call.func) == "draft.emit":
                        yield f"{path.name}:{call.lineno}", set(names(call.args[1], function))


def names(value: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
    """Yield the strings that an expression may be, through variables."""
    if isinstance(value, ast.Constant):
        yield str(value.value)
    elif isinstance(value, ast.IfExp):
        yield from (*names(value.body, function), *names(value.orelse, function))
    elif isinstance(value, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id:
                yield from names(node.value, function)


def test_every_emitted_event_has_a_kind_and_a_line() -> None:
    """A new event cannot be forgotten."""
    found = dict(emitted())
    assert len(found) > 20

    for place, possible in found.items():
        assert possible, f"{place}: the name of the event is not a constant"
        assert possible <= EVENTS.keys(), place
    used = {name for possible in found.values() for name in possible}
    others = {"node_departed", "node_displaced", "hang_over"}  # kinds with other names
    assert EVENTS.keys() - used == others


def test_every_kind_is_emitted() -> None:
    """And has its number and its field in the contract."""
    found = {name for _, possible in emitted() for name in possible}
    kinds = {EVENTS[name][0] for name in found}

    assert set(EventKind) == kinds
    assert set(events_pb2.EventKind.values()) - {0} == set(KINDS.values())
    fields = events_pb2.Event.DESCRIPTOR.oneofs_by_name["detail"].fields
    assert {kind.number: kind.name for kind in fields} == {
        KINDS[kind]: arm for kind, arm in ARMS.items()
    }


def told(bench: Bench, job_id: str = JOB) -> list[Event]:
    return bench.state.events.find(JobId(job_id), 0, 1_000).events


def kinds(bench: Bench, job_id: str = JOB) -> list[str]:
    return [event.reason for event in told(bench, job_id)]


def test_life_of_a_job_is_told_in_order() -> None:
    """From its first node to its deletion, and after it."""
    bench, a, b = pair()
    a.fail()
    bench.obey()
    for agent in (a, b):
        agent.succeed()
    bench.obey()
    a.goodbye()
    b.goodbye()
    bench.take(inputs.DeleteJob(JobId(JOB)))

    assert JobId(JOB) not in bench.state.jobs
    assert kinds(bench) == [
        *("run_opened", "node_joined", "node_joined", "round_sealed", "round_started"),
        *("round_stopped", "round_settled", "round_sealed", "round_started", "run_closed"),
        *("node_left", "node_left", "job_deleted"),
    ]
    assert [0] * 3 + [1] * 4 + [2] * 6 == [event.round for event in told(bench)]
    assert {1} == {event.run for event in told(bench)}
    bench.check_journal()


def test_judgement_is_told_before_the_end_of_the_run() -> None:
    """Also when the round's failure ends it."""
    bench, a, _ = pair(max_restarts=0)
    a.fail()
    bench.obey()
    settled, closed = told(bench)[-2:]
    message = event_message(settled, bench.state.clocks, bench.now_ms)

    assert ("round_settled", "run_closed") == (settled.reason, closed.reason)
    assert "budget spent" == settled.fact("consequence")
    assert ("a", 0, True) == (
        message.round_settled.node_name,
        message.round_settled.rank,
        message.round_settled.HasField("rank"),
    )
    assert "worker failed" == closed.fact("cause") == settled.fact("cause")


def test_reasons_of_operators_are_told() -> None:
    """Of every change that has one; an event of an older journal has none."""
    bench, _, _ = pair()
    job_id, name = JobId(JOB), NodeName("a")
    for change in (
        inputs.UpdateJob(job_id, max_restarts=7, reason="flaky disk"),
        inputs.Cordon(job_id, name, "bad memory"),
        inputs.Uncordon(job_id, name, reason="repaired"),
        inputs.RestartJob(job_id, 0, "new data"),
    ):
        bench.take(change)
    messages = [event_message(one, bench.state.clocks, bench.now_ms) for one in told(bench)]
    whys = {
        detail: (getattr(one, detail).reason, one.text)
        for one in messages
        for detail in ("job_updated", "node_cordoned", "node_uncordoned", "restart_requested")
        if one.WhichOneof("detail") == detail
    }
    (updated,) = [one for one in told(bench) if one.reason == "job_updated"]
    facts = tuple((key, value) for key, value in updated.facts if key != "why")
    older = event_message(replace(updated, facts=facts), bench.state.clocks, bench.now_ms)

    assert whys == {
        "job_updated": (
            "flaky disk",
            "an operator changed the job: 2 to 2 nodes, at most 7 restarts: flaky disk",
        ),
        "node_cordoned": ("bad memory", "node a was cordoned: bad memory"),
        "node_uncordoned": ("repaired", "node a was uncordoned: repaired"),
        "restart_requested": ("new data", "an operator restarted the job: new data"),
    }
    assert (older.job_updated.max_restarts, older.job_updated.reason) == (7, "")
    bench.check_journal()


def test_steps_without_events_have_no_record() -> None:
    """A heartbeat, or a report that changes nothing for readers."""
    bench, a, _ = pair()
    before = len(bench.records)
    a.heartbeat()
    bench.take(inputs.Uncordon(JobId(JOB), NodeName("a")))

    assert not [one for one in bench.records[before:] if isinstance(one, EventsLogged)]


def test_snapshot_has_the_events() -> None:
    """Its weight counts, so that a journal full of events is compacted."""
    bench, a, _ = pair()
    a.fail()
    bench.obey()
    memory = memory_of(bench.state)
    records = snapshot(memory)

    assert memory == replay(records)
    assert bench.state.events == replay(records).events
    logged = [one for one in bench.records if isinstance(one, EventsLogged)]
    of_snapshot = [one for one in records if isinstance(one, EventsLogged)]
    assert sum(map(weight_of, of_snapshot)) == sum(map(weight_of, logged)) > 0


def test_higher_epoch_moves_the_numbers_on() -> None:
    """An agent that knows a later epoch; what the other coordinator has logged is unknown here."""
    bench = Bench(JobSpec(min_nodes=3, max_nodes=3))
    bench.join("a")
    late = bench.agent("b")
    late.epoch = bench.state.epoch + 10
    late.hello(coordinator_id="c0")
    sequences = [event.sequence for event in told(bench)]

    assert sequences == sorted(sequences)
    assert sequences[-1] >= bench.state.epoch * 1_000 > sequences[0]
    assert bench.state.events.lost(JobId(JOB)) == bench.state.epoch * 1_000 - 1
