"""Reads of keys, as of one turn. Each checks the claim of its caller first."""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from rallypoint.server.coordinator import InputRefused
from rallypoint.server.core.keyspace.keyspace import Keyspace
from rallypoint.server.core.keyspace.values import Change, Entry, Place
from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.messages.refusals import Refusal, RefusalKind
from rallypoint.server.core.model.job import Job
from rallypoint.server.core.rounds.claims import check_claim
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.server.rpc.convert.keys import Get, Page, Watch
from rallypoint.server.rpc.guards.peers import LimitExceeded
from rallypoint.server.rpc.keys.views import event_message, header_message, kv_message
from rallypoint.server.rpc.keys.waits import KeyWait
from rallypoint.v1 import key_value_service_pb2 as keys_pb2

ANSWER_BYTES_MAX = 1_048_576
"""Bytes of the keys and values of one answer. One with a single key may be longer."""
EVENTS_MAX = 1_000
"""Changes of one answer."""
FRAME_BYTES = 32
"""Bytes of an answer for each key, besides the key and the value."""


def open_keys(state: State, claim: Claim, now_ms: int) -> tuple[Job, Keyspace]:
    """Return the job of a worker, and its keys.

    Raises:
        InputRefused: when the worker may not read them.
    """
    job = check_claim(Draft(state, now_ms), claim)
    if isinstance(job, Refusal):
        raise InputRefused(job)
    return job, state.keys.get(job.job_id) or Keyspace(job.run)


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
    answer = keys_pb2.GetKeysResponse(header=header_message(state.epoch, space.revision))
    missing = [place for place in get.places if place not in space.entries]
    if missing and get.timeout_ms:
        return Found(answer, missing)  # an answer without them is of no use
    left = ANSWER_BYTES_MAX
    for place in get.places:
        entry = space.entries.get(place)
        if entry is None:
            continue
        left -= _size(place.key, entry)
        if left < 0 and answer.kvs:
            raise LimitExceeded("bytes of keys and values in one answer", ANSWER_BYTES_MAX)
        answer.kvs.append(kv_message(place.key, entry))
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
        header=header_message(state.epoch, space.revision), key_count=end - begin
    )
    if page.after:
        begin = bisect_right(space.places, Place(round, page.after), begin, end)
    left = ANSWER_BYTES_MAX
    for place in space.places[begin : min(end, begin + page.size)]:
        entry = space.entries[place]
        left -= len(place.key) + FRAME_BYTES if page.keys_only else _size(place.key, entry)
        if left < 0 and answer.kvs:
            break
        answer.kvs.append(kv_message(place.key, entry, with_value=not page.keys_only))
    if begin + len(answer.kvs) < end:
        answer.next_page_token = answer.kvs[-1].key
    return answer


class Cursor:
    """How far a watch has come."""

    def __init__(self, watch: Watch, wait: KeyWait, next: int) -> None:
        """Place it at the first revision that the watch has not returned."""
        self.wait = wait
        self._watch = watch
        self._next = next

    @classmethod
    def begin(cls, watch: Watch, wait: KeyWait, state: State, now_ms: int) -> Cursor:
        """Return the cursor of a new watch.

        Args:
            watch: what the caller wants.
            wait: learns of changes already.
            state: read in a turn.
            now_ms: journal time.

        Raises:
            InputRefused: when the worker may not read the keys, or changes since the wanted
                revision are not known.
        """
        job, space = open_keys(state, watch.claim, now_ms)
        start = watch.start or space.revision + 1
        is_known = space.compacted < start <= space.revision + 1
        if 0 < watch.epoch < job.since_epoch or not is_known:
            raise InputRefused(_compacted(state, space))
        if start <= space.revision:
            wait.note(start)
        return cls(watch, wait, start)

    def begin_message(self, epoch: int) -> keys_pb2.WatchKeysResponse:
        """Return the first answer: where the watch begins."""
        return keys_pb2.WatchKeysResponse(header=header_message(epoch, self._next - 1))

    def take(self, state: State, now_ms: int) -> keys_pb2.WatchKeysResponse:
        """Return the next changes. When there are more, the wait is set.

        Raises:
            InputRefused: when the worker may not read the keys any more, or some of these changes
                are forgotten already.
        """
        _, space = open_keys(state, self._watch.claim, now_ms)
        answer = keys_pb2.WatchKeysResponse(header=header_message(state.epoch, space.revision))
        woken_by = self.wait.look()
        if woken_by is not None:  # else no key of the watch has changed since the last look
            # A change may have been noted before the first look, which covers it.
            first = max(woken_by, self._next)
            if first <= space.compacted:
                raise InputRefused(_compacted(state, space))
            rest = self._fill(answer, space, first)
            if rest is not None:
                self.wait.note(rest)
                answer.header.revision = rest - 1
        self._next = answer.header.revision + 1
        return answer

    def _fill(self, answer: keys_pb2.WatchKeysResponse, space: Keyspace, first: int) -> int | None:
        """Add changes to an answer; return the revision of the first that has no room."""
        left = ANSWER_BYTES_MAX
        for change in _changes_since(space, first):
            if not _concerns(change, self._watch.prefix):
                continue
            left -= _size(change.place.key, change.entry)
            if len(answer.events) >= EVENTS_MAX or (left < 0 and answer.events):
                return change.revision
            answer.events.append(event_message(change))
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


def _size(key: str, entry: Entry | None) -> int:
    return len(key.encode()) + FRAME_BYTES + (0 if entry is None else len(entry.value))
