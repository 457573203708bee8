"""Keys are dropped with their round or run, and never come back."""

from __future__ import annotations

from rallypoint.server.core.messages.records import KeysDropped
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model.keyspace import Place
from support.core.fake_agents import JOB
from support.core.keys import Sharing, sharing


def test_keys_of_a_round_end_with_it() -> None:
    """Before the next round begins; those of the run stay, and so does the revision."""
    of_round = sharing()
    of_run = Sharing(of_round.bench, of_run=True)
    of_round.put("a", b"1")
    of_run.put("b", b"2")
    a, _ = of_round.bench.agents.values()
    a.fail()
    assert set(of_round.space.entries) == {Place(0, "b")}
    assert [change.place.key for change in of_round.space.changes] == ["b"]
    of_round.bench.obey()
    assert of_round.bench.job().round_number == 2
    assert of_round.value("a") is None
    of_round.put("a", b"3")
    assert of_round.space.revision == 3
    assert of_run.value("b") == b"2"
    of_round.bench.check_journal()


def test_old_rounds_worker_writes_nothing() -> None:
    """Also not between the rounds, and not to the run."""
    at = sharing(of_run=True)
    old = Sharing(at.bench, of_run=True, claim_facts={"round": 1})
    a, _ = at.bench.agents.values()
    a.fail()
    assert old.put("a", b"1") is RefusalKind.OLD_ROUND
    at.bench.obey()
    assert old.put("a", b"1") is RefusalKind.OLD_ROUND
    assert at.bench.state.keys == {}


def test_keys_end_with_the_run() -> None:
    """The record says so once, and a later run begins with none."""
    at = sharing(of_run=True)
    at.put("a", b"1")
    for agent in tuple(at.bench.agents.values()):
        agent.succeed()
    assert at.bench.job().outcome is not None
    assert at.bench.state.keys == {}
    dropped = [one for one in at.bench.records if isinstance(one, KeysDropped)]
    assert dropped == [KeysDropped(JOB, 1)]
    at.bench.check_journal()


def test_run_without_keys_drops_none() -> None:
    """No record without a key."""
    at = sharing()
    a, _ = at.bench.agents.values()
    a.fail()
    at.bench.obey()
    assert not any(isinstance(one, KeysDropped) for one in at.bench.records)


def test_snapshot_has_everything() -> None:
    """Keys, changes, requests, and what is forgotten."""
    of_round = sharing()
    of_run = Sharing(of_round.bench, of_run=True)
    for number in range(5):
        of_round.put(f"a{number}", b"1")
        of_run.add("n", 2)
    of_round.bench.check_journal()
    assert of_run.value("n") == b"10"
