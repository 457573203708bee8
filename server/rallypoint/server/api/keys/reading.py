"""Reads of keys, as of one turn. Each checks the claim of its caller first."""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from rallypoint.server.api.keys.messages import (
    Get,
    Page,
    Watch,
    event_message,
    header_message,
    kv_message,
)
from rallypoint.server.api.keys.waits import KeyWaits, KeyWatch
from rallypoint.server.contract.calls import LimitExceeded
from rallypoint.server.contract.pages import Room
from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.messages.refusals import Limit, Refusal, RefusalKind
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.model.keyspace import (
    ANSWER_BYTES_MAX,
    Change,
    Keyspace,
    Place,
    new_keyspace,
)
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.shell.coordinator import InputRefused
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

EVENTS_MAX = 1_000
"""Changes of one answer of a watch."""
EVENTS_BYTES_MAX = 65_536
"""Bytes of their keys and values; an answer with one change may be longer. Small, because an answer
that is not read stays in memory."""


def open_keys(state: State, claim: Claim, now_ms: int) -> tuple[Job, Keyspace]:
    """Return the job of a worker, and its keys.

    Raises:
        InputRefused: when the worker may not read them.
    """
    job = check_claim(Draft(state, now_ms), claim)
    if isinstance(job, Refusal):
        raise InputRefused(job)
    return job, state.keys.get(job.job_id) or new_keyspace(job.run, job.since_epoch)


class Found(Struct):
    """What a read of keys has found."""

    answer: keys_pb2.GetKeysResponse
    missing: list[Place]
    """Those that do not exist."""


def get_keys(get: Get, state: State, now_ms: int) -> Found:
    """Return the keys that exist.

    Raises:
        InputRefused: when the worker may not read them.
        LimitExceeded: when their values are too long for one answer.
    """
    _, space = open_keys(state, get.claim, now_ms)
    answer = keys_pb2.GetKeysResponse(header=header_message(state, space.revision))
    missing = [place for place in get.places if place not in space.entries]
    if missing and get.timeout_ms:
        return Found(answer, missing)  # an answer without them is of no use
    room = Room(bytes_max=ANSWER_BYTES_MAX)
    for place in get.places:
        entry = space.entries.get(place)
        if entry is None:
            continue
        kv = kv_message(place.key, entry)
        if not room.take(kv.ByteSize()):
            raise LimitExceeded(Limit.ANSWER_BYTES, ANSWER_BYTES_MAX)
        answer.kvs.append(kv)
    return Found(answer, missing)


def list_keys(page: Page, state: State, now_ms: int) -> keys_pb2.ListKeysResponse:
    """Return a page of keys.

    Raises:
        InputRefused: when the worker may not read them.
    """
    _, space = open_keys(state, page.claim, now_ms)
    round, prefix = page.prefix
    begin, end = space.find(round, prefix)
    answer = keys_pb2.ListKeysResponse(
        header=header_message(state, space.revision), key_count=end - begin
    )
    if page.after:
        begin = bisect_right(space.places, Place(round, page.after), begin, end)
    room = Room(bytes_max=ANSWER_BYTES_MAX)
    for place in space.places[begin : min(end, begin + page.size)]:
        kv = kv_message(place.key, space.entries[place], with_value=not page.keys_only)
        if not room.take(kv.ByteSize()):
            break
        answer.kvs.append(kv)
    if begin + len(answer.kvs) < end:
        answer.next_page_token = answer.kvs[-1].key
    return answer


class Cursor:
    """How far a watch has come."""

    def __init__(self, watch: Watch, host: str, waits: KeyWaits) -> None:
        """Prepare a watch for a caller on a host."""
        self._watch = watch
        self._waits = waits
        self.wait = KeyWatch(watch.claim.job_id, watch.prefix, host)
        self._next = 0
        """The first revision that it has not returned; 0: it has not begun."""

    def begin(self, state: State, now_ms: int) -> keys_pb2.WatchKeysResponse:
        """Begin in a turn; return the first answer, which says where.

        Raises:
            InputRefused: when the worker may not read the keys, or changes since the wanted
                revision are not known.
            LimitExceeded: when there are too many watches.
        """
        job, space = open_keys(state, self._watch.claim, now_ms)
        start = self._watch.start or space.revision + 1
        is_known = space.compacted < start <= space.revision + 1
        is_ours = job.since_epoch <= (self._watch.epoch or state.epoch) <= state.epoch
        if not (is_known and is_ours):
            raise InputRefused(_compacted(state, space))
        self._waits.watch(self.wait, state)
        self._next = start
        if start <= space.revision:
            self.wait.note(start)
        return keys_pb2.WatchKeysResponse(header=header_message(state, start - 1))

    def end(self) -> None:
        """End the watch, if it has begun."""
        if self._next:
            self._waits.unwatch(self.wait)

    def take(self, state: State, now_ms: int) -> keys_pb2.WatchKeysResponse:
        """Return the next changes. When there are more, the watch is woken again.

        Raises:
            InputRefused: when the worker may not read the keys any more, or some of these changes
                are forgotten already.
        """
        wait = self.wait
        _, space = open_keys(state, self._watch.claim, now_ms)
        answer = keys_pb2.WatchKeysResponse(header=header_message(state, space.revision))
        first, wait.first = wait.first, None
        wait.changed.clear()
        if first is not None:  # else no key of the watch has changed since the last look
            if first <= space.compacted:
                raise InputRefused(_compacted(state, space))
            rest = self._fill(answer, space, first)
            if rest is not None:
                wait.note(rest)
                answer.header.revision = rest - 1
        self._next = answer.header.revision + 1
        return answer

    def _fill(self, answer: keys_pb2.WatchKeysResponse, space: Keyspace, first: int) -> int | None:
        """Add changes to an answer; return the revision of the first that has no room."""
        room = Room(size=EVENTS_MAX, bytes_max=EVENTS_BYTES_MAX)
        for change in _changes_since(space, first):
            if not _concerns(change, self._watch.prefix):
                continue
            event = event_message(change)
            if not room.take(event.ByteSize()):
                return change.revision
            answer.events.append(event)
        return None


def _changes_since(space: Keyspace, first: int) -> list[Change]:
    """Return the changes from a revision on. Most watches are close to the latest one."""
    found: list[Change] = []
    for change in reversed(space.changes):
        if change.revision < first:
            break
        found.append(change)
    found.reverse()
    return found


def _concerns(change: Change, prefix: Place) -> bool:
    return change.place.round == prefix.round and change.place.key.startswith(prefix.key)


def _compacted(state: State, space: Keyspace) -> Refusal:
    facts = (("oldest_revision", space.compacted + 1), ("epoch", state.epoch))
    return Refusal(RefusalKind.KEYS_COMPACTED, facts)
