"""The view of members and owners: changes in any order of arrival, and keys of other programs."""

from __future__ import annotations

from rallypoint.server.etcd.claims import Claim, member_key, owner_key
from rallypoint.server.etcd.values import Change, KeyValue
from rallypoint.server.etcd.view import Member, View

PREFIX = "/p"


def owner(shard: int, member: str, revision: int) -> KeyValue:
    value = f'{{"member": "{member}"}}'.encode()
    return KeyValue(owner_key(PREFIX, shard), value, revision, revision, 1)


def member(name: str, revision: int, value: bytes = b'{"address": "h:1"}') -> KeyValue:
    return KeyValue(member_key(PREFIX, name), value, revision, revision, 1)


def gone(pair: KeyValue, revision: int) -> Change:
    return Change(KeyValue(pair.key, b"", 0, revision, 0), is_deleted=True)


def test_view_is_read_then_followed() -> None:
    view = View(PREFIX)
    view.reset((member("a", 3), owner(1, "a", 4), owner(2, "b", 5)), 6)
    view.follow((gone(owner(1, "a", 4), 7), Change(owner(3, "a", 8), is_deleted=False)))

    assert {2: "b", 3: "a"} == view.owners_by_id()
    assert {"a"} == view.taking_part()
    assert view.revision == 8
    assert view.owners[3].claim == Claim(3, owner_key(PREFIX, 3), 8)


def test_own_changes_are_not_undone_by_older_ones() -> None:
    """A claim and a release of this process are known before the watch brings them."""
    view = View(PREFIX)
    view.reset((owner(1, "me", 4),), 5)
    view.note_claimed(Claim(2, owner_key(PREFIX, 2), 9), "me")
    view.note_released(Claim(1, owner_key(PREFIX, 1), 4), 10)
    view.follow((Change(owner(1, "me", 4), is_deleted=False),))
    view.reset((owner(1, "me", 4),), 6)

    assert {2: "me"} == view.owners_by_id()

    view.reset((owner(1, "other", 11),), 12)
    assert {1: "other"} == view.owners_by_id()


def test_backup_of_etcd_has_lower_revisions() -> None:
    """After a restart of the view, what etcd shows replaces what was known, however new."""
    view = View(PREFIX)
    view.reset((member("a", 30), owner(1, "a", 40), owner(2, "a", 41)), 60)
    view.restart()
    view.reset((member("b", 3), owner(2, "b", 4)), 5)
    view.follow((Change(owner(3, "b", 6), is_deleted=False),))

    assert {2: "b", 3: "b"} == view.owners_by_id()
    assert {"b"} == view.taking_part()
    assert view.revision == 6


def test_release_of_an_old_claim_changes_nothing() -> None:
    view = View(PREFIX)
    view.reset((owner(1, "other", 8),), 9)
    view.note_released(Claim(1, owner_key(PREFIX, 1), 4), 10)

    assert {1: "other"} == view.owners_by_id()


def test_member_that_leaves_takes_no_part() -> None:
    view = View(PREFIX)
    view.reset((member("a", 3), member("b", 4, b'{"address": "h:2", "is_leaving": true}')), 5)

    assert {"a"} == view.taking_part()
    assert view.members["b"] == Member("h:2", is_leaving=True)


def test_keys_of_other_programs() -> None:
    """A shard with an owner that no coordinator wrote has an owner; other keys are passed over."""
    view = View(PREFIX)
    odd = KeyValue(f"{PREFIX}/live/owners/x".encode(), b"", 1, 1, 0)
    wrong = KeyValue(owner_key(PREFIX, 5), b"not JSON", 2, 2, 0)
    other = KeyValue(f"{PREFIX}/live/others/5".encode(), b"", 3, 3, 0)
    view.reset((odd, wrong, other, member("c", 4, b"[]")), 5)

    assert [5] == [*view.owners]
    assert {} == view.members
    view.follow((gone(wrong, 6),))
    assert {} == view.owners
