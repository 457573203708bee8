"""Writes of keys: what they change, how often they count, and who is refused."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.server.core.messages.effects import WriteAnswered
from rallypoint.server.core.messages.refusals import RefusalKind
from rallypoint.server.core.model import keyspace
from rallypoint.server.core.model.keyspace import Answer, Condition, Entry, Place, Write
from support.core.keys import Sharing, sharing


def test_every_change_has_the_next_revision() -> None:
    """A key knows when it was created, when it was changed, and how often."""
    at = sharing()
    assert at.put("a", b"1") == Answer(1, (keyspace.Written(1),))
    at.put("b", b"2")
    at.put("a", b"3")
    entries = {place.key: entry for place, entry in at.space.entries.items()}
    assert entries == {"a": Entry(b"3", 1, 3, 2), "b": Entry(b"2", 2, 2, 1)}
    assert [change.revision for change in at.space.changes] == [1, 2, 3]
    at.bench.check_journal()


def test_deleted_key_is_gone_and_begins_again() -> None:
    """The deletion is a change; the next value is the first version of a new key."""
    at = sharing()
    at.put("a", b"1")
    deleted = at.write(Write("a"))
    assert isinstance(deleted, Answer)
    assert (deleted.revision, deleted.results[0].revision) == (2, 2)
    assert at.value("a") is None
    at.put("a", b"2")
    assert at.space.entries[Place(1, "a")] == Entry(b"2", 3, 3, 1)


def test_deleting_what_does_not_exist_changes_nothing() -> None:
    """It is no change, and it is no error."""
    at = sharing()
    assert at.write(Write("a"), request_id="") == Answer(0, (keyspace.Written(),))
    assert at.bench.state.keys == {}


def test_numbers_are_added_to() -> None:
    """A key that does not exist counts as 0, and the value is the sum in decimal digits."""
    at = sharing()
    assert [at.add("n", amount) for amount in (5, -7, 0)] == [5, -2, -2]
    assert at.value("n") == b"-2"


def test_values_are_appended_to() -> None:
    """A key that does not exist counts as empty, and every append is a change."""
    at = sharing()
    for more in (b"a", b"", b"bc"):
        assert isinstance(at.write(Write("log", suffix=more)), Answer)
    assert at.value("log") == b"abc"
    assert at.space.entries[Place(1, "log")] == Entry(b"abc", 1, 3, 3)
    at.bench.check_journal()


def test_append_that_is_sent_again_counts_once() -> None:
    """The second attempt has the answer of the first; as another change it is refused."""
    at = sharing()
    first = at.write(Write("log", suffix=b"a"), request_id="r", digest=b"1")
    assert first == at.write(Write("log", suffix=b"a"), request_id="r", digest=b"1")
    other = at.write(Write("log", suffix=b"b"), request_id="r", digest=b"2")
    assert other is RefusalKind.REQUEST_ID_REUSED
    assert at.value("log") == b"a"


def test_append_makes_no_value_too_long() -> None:
    """At the limit it counts; beyond it, none of the writes of the request does."""
    at = sharing()
    at.put("log", b"x" * (keyspace.VALUE_BYTES_MAX - 1))
    beyond = at.write(Write("log", suffix=b"y"), Write("log", suffix=b"z"))
    assert beyond is RefusalKind.LIMIT_REACHED
    assert len(at.value("log") or b"") == keyspace.VALUE_BYTES_MAX - 1
    assert isinstance(at.write(Write("log", suffix=b"y")), Answer)
    assert len(at.value("log") or b"") == keyspace.VALUE_BYTES_MAX


@pytest.mark.parametrize("value", [b"", b"x", b"1.5", b" 1", b"1\n", b"0x1", b"9" * 20])
def test_what_is_no_number_is_not_added_to(value: bytes) -> None:
    """The key keeps its value."""
    at = sharing()
    at.put("n", value)
    assert at.add("n", 1) is RefusalKind.KEY_NOT_A_NUMBER
    assert at.value("n") == value


def test_sum_fits_into_64_bits() -> None:
    """Other languages cannot hold more."""
    at = sharing()
    at.put("n", b"%d" % (keyspace.NUMBER_MAX - 1))
    assert at.add("n", 1) == keyspace.NUMBER_MAX
    assert at.add("n", 1) is RefusalKind.SUM_TOO_LARGE
    assert at.add("low", -keyspace.NUMBER_MAX) == -keyspace.NUMBER_MAX
    assert at.add("low", -1) is RefusalKind.SUM_TOO_LARGE


def test_comparison_decides_whether_a_key_is_set() -> None:
    """With a value, a revision, or that it does not exist."""
    at = sharing()
    assert not at.swap("a", b"", b"1"), "the key has no value at all"
    assert not at.swap("a", 7, b"1")
    assert at.swap("a", 0, b"1"), "it did not exist"
    assert not at.swap("a", 0, b"2"), "it exists"
    assert at.swap("a", b"1", b"2")
    assert not at.swap("a", b"1", b"3")
    assert at.swap("a", at.space.revision, b"3")
    assert at.value("a") == b"3"


def test_comparison_that_fails_says_what_there_is() -> None:
    """And one that holds, what there is now."""
    at = sharing()
    at.put("a", b"1")
    failed = at.write(Write("a", value=b"2", expected=Condition(b"x")))
    assert isinstance(failed, Answer)
    assert failed.results == (keyspace.Written(entry=Entry(b"1", 1, 1, 1)),)
    held = at.write(Write("a", value=b"2", expected=Condition(b"1")))
    assert isinstance(held, Answer)
    assert held.results == (keyspace.Written(2, entry=Entry(b"2", 1, 2, 2)),)


def test_key_is_deleted_only_if_it_is_as_expected() -> None:
    """Two that take one item from a queue never both get it."""
    at = sharing()
    at.put("item", b"1")
    assert at.write(Write("item", expected=Condition(modified=9))) == Answer(
        1, (keyspace.Written(entry=Entry(b"1", 1, 1, 1)),)
    )
    assert at.write(Write("item", expected=Condition(modified=1))) == Answer(
        2, (keyspace.Written(2),)
    )


def test_writes_of_one_request_see_each_other() -> None:
    """They happen in order and in one step, each with a revision; readers see all or none."""
    at = sharing()
    answer = at.write(
        Write("n", amount=2),
        Write("n", amount=3),
        Write("n", value=b"x", expected=Condition(b"5")),
        Write("n", value=b"y", expected=Condition(b"5")),
        Write("n"),
        Write("m", value=b"z"),
    )
    assert isinstance(answer, Answer)
    assert [one.revision for one in answer.results] == [1, 2, 3, 0, 4, 5]
    assert [one.sum for one in answer.results[:2]] == [2, 5]
    assert (at.value("n"), at.value("m")) == (None, b"z")
    at.bench.check_journal()


def test_one_refused_write_refuses_all() -> None:
    """Nothing has changed."""
    at = sharing()
    at.put("a", b"x")
    refused = at.write(Write("b", value=b"1"), Write("a", amount=1))
    assert refused is RefusalKind.KEY_NOT_A_NUMBER
    assert at.value("b") is None


def test_keys_of_the_run_and_of_the_round_are_different_keys() -> None:
    """One revision counts the changes of both."""
    of_round = sharing()
    of_run = Sharing(of_round.bench, of_run=True)
    of_round.put("a", b"round")
    of_run.put("a", b"run")
    assert (of_round.value("a"), of_run.value("a")) == (b"round", b"run")
    assert of_round.space.revision == 2


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"round": 7}, RefusalKind.OLD_ROUND),
        ({"run": 7}, RefusalKind.RUN_OVER),
        ({"is_signed": False}, RefusalKind.TOKEN_REFUSED),
    ],
)
def test_only_workers_of_the_round_may_write(facts: dict[str, Any], why: RefusalKind) -> None:
    """What a worker holds decides, not what it says."""
    at = sharing()
    stranger = Sharing(at.bench, claim_facts=facts)
    assert stranger.put("a", b"x", round=1) is why
    assert at.bench.state.keys == {}


def test_request_that_is_sent_again_counts_once() -> None:
    """Its answer is the first one, whatever has happened since; nothing is announced twice."""
    at = sharing()
    first = at.write(Write("n", amount=5), request_id="r")
    at.add("n", 100)
    again = at.write(Write("n", amount=5), request_id="r", is_repeated=True)
    assert again == first
    assert at.value("n") == b"105"
    answered = [one for one in at.bench.effects if isinstance(one, WriteAnswered)]
    assert [len(one.changes) for one in answered] == [1, 1, 0]


def test_late_first_attempt_does_not_take_effect() -> None:
    """Its other attempt was answered: it has changed nothing, whatever there is now."""
    at = sharing()
    assert not at.swap("a", b"1", b"2", request_id="r")
    at.put("a", b"1")
    assert not at.swap("a", b"1", b"2", request_id="r")
    assert at.value("a") == b"1"
    at.bench.check_journal()


def test_request_id_belongs_to_one_request() -> None:
    """Another one with the same id is refused, not taken for an attempt of the first."""
    at = sharing()
    at.put("a", b"1", request_id="r", digest=b"first")
    assert at.add("n", 1, request_id="r", digest=b"other") is RefusalKind.REQUEST_ID_REUSED
    assert at.put("a", b"1", request_id="r", digest=b"first") is not None
    assert at.value("n") is None


def test_request_whose_first_attempt_may_be_forgotten_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One from after everything that is forgotten counts."""
    monkeypatch.setattr(keyspace, "REQUESTS_BYTES_MAX", 3 * (keyspace.REQUEST_BYTES + 2))
    at = sharing()
    epoch = at.bench.state.epoch
    for number in range(5):
        assert at.add("n", 1, request_id=f"r{number}") == number + 1
    assert list(at.space.requests) == ["r2", "r3", "r4"]
    assert at.space.forgotten == 2
    repeated = {"is_repeated": True, "known_epoch": epoch}
    assert at.add("n", 1, request_id="r1", known_revision=1, **repeated) is (
        RefusalKind.KEYS_FORGOTTEN
    )
    assert at.add("n", 1, request_id="r2", known_revision=0, **repeated) == 3, "it is remembered"
    assert at.add("n", 1, request_id="new", known_revision=2, **repeated) == 6
    at.bench.check_journal()


def test_header_that_cannot_be_ours_proves_nothing() -> None:
    """A later epoch, or a revision that there has not been yet."""
    at = sharing()
    epoch = at.bench.state.epoch
    for known in ((epoch + 1, 0), (epoch, 1)):
        facts = {"known_epoch": known[0], "known_revision": known[1]}
        assert at.add("n", 1, is_repeated=True, **facts) is RefusalKind.KEYS_FORGOTTEN


def test_requests_of_a_round_end_with_it() -> None:
    """The next round's workers may use the same ids: they count, and nothing is forgotten."""
    at = sharing()
    at.add("n", 1, request_id="rank0-1")
    a, _ = at.bench.agents.values()
    a.fail()
    at.bench.obey()
    assert (at.space.requests, at.space.requests_bytes, at.space.forgotten) == ({}, 0, 0)
    assert at.add("n", 1, request_id="rank0-1") == 1
    assert at.value("n") == b"1"
    at.bench.check_journal()


def test_revisions_of_a_later_coordinator_are_higher(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with one of an earlier coordinator can hold by no accident."""
    monkeypatch.setattr(keyspace, "REVISIONS_PER_EPOCH", 1_000)
    at = sharing()
    at.put("a", b"1")
    assert at.space.revision == at.bench.job().since_epoch * 1_000 + 1
    assert at.space.compacted == at.space.revision - 1


def test_request_of_an_earlier_coordinator_is_refused() -> None:
    """This one has no memory of it: its first attempt may have counted, and may be lost."""
    at = sharing()
    epoch = at.bench.job().since_epoch
    assert at.add("n", 1, is_repeated=True, known_epoch=epoch - 1) is RefusalKind.KEYS_FORGOTTEN
    assert at.add("n", 1, is_repeated=True, known_epoch=epoch) == 1


def test_keys_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and bytes; what makes room is never refused."""
    monkeypatch.setattr("rallypoint.server.core.keys.KEYS_MAX", 2)
    monkeypatch.setattr("rallypoint.server.core.keys.BYTES_MAX", 10)
    at = sharing()
    at.put("a", b"1")
    at.put("b", b"1")
    assert at.put("c", b"1") is RefusalKind.LIMIT_REACHED
    assert isinstance(at.write(Write("a"), Write("c", value=b"1")), Answer)
    assert isinstance(at.put("b", b"1234567"), Answer), "ten bytes with the keys"
    assert at.put("b", b"12345678") is RefusalKind.LIMIT_REACHED
    assert isinstance(at.put("b", b""), Answer)
    assert at.space.bytes == 3


def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a failed comparison found is part of its answer. Nothing has changed then."""
    monkeypatch.setattr("rallypoint.server.core.keys.ANSWER_BYTES_MAX", 10)
    at = sharing()
    at.put("a", b"123456")
    failing = Write("a", value=b"", expected=Condition(b""))
    assert at.write(Write("n", amount=1), failing, failing) is RefusalKind.LIMIT_REACHED
    assert at.value("n") is None
    assert isinstance(at.write(Write("n", amount=1), failing), Answer)


def test_keys_of_all_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """New keys and larger values are refused; those that there are can change."""
    monkeypatch.setattr("rallypoint.server.core.keys.TOTAL_WEIGHT_MAX", 600)
    at = sharing()
    at.put("a", b"1", request_id="")
    assert at.bench.state.holding.keys == at.space.weight > 600
    assert at.put("b", b"1") is RefusalKind.LIMIT_REACHED
    assert isinstance(at.put("a", b"2"), Answer)
    assert at.put("a", b"22") is RefusalKind.LIMIT_REACHED
    assert isinstance(at.write(Write("a")), Answer)


def test_latest_changes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded by number and by bytes; it is known which are forgotten."""
    monkeypatch.setattr(keyspace, "CHANGES_MAX", 4)
    monkeypatch.setattr(keyspace, "CHANGES_BYTES_MAX", 12)
    at = sharing()
    for number in range(6):
        at.put("a", b"%d" % number)
    assert [change.revision for change in at.space.changes] == [3, 4, 5, 6]
    assert at.space.compacted == 2
    at.put("a", b"12345678")
    assert [change.revision for change in at.space.changes] == [6, 7]
    assert (at.space.compacted, at.space.changes_bytes) == (5, 11)
    at.bench.check_journal()
