"""The keys of one run: their values, the latest changes, and the latest requests.

The coordinator's state and a replay of its journal apply the same changes with the same code. What
is kept of the past is bounded by bytes, so both forget the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

KEYS_MAX = 65_536
"""Keys of a job."""
BYTES_MAX = 33_554_432
"""Bytes of all keys and values of a job."""
TOTAL_WEIGHT_MAX = 536_870_912
"""What the keys and barriers of all jobs of a process may weigh, with what is remembered."""
BARE_WEIGHT_MAX = TOTAL_WEIGHT_MAX // 8
"""What ranks and nodes that bring nothing to a barrier may weigh beyond that, so that one job with
large values stops no other job's barriers."""
ANSWER_BYTES_MAX = 1_048_576
"""Bytes of keys and values in one answer."""
VALUE_BYTES_MAX = 65_536
"""Bytes of one value; the contract's limit, which an append must keep, too."""
WRITES_MAX = 256
"""Changes of one request."""
WRITE_BYTES_MAX = 1_048_576
"""Bytes of the values of one request."""
NUMBER_MAX = 2**63 - 1
"""Highest sum, and with a minus the lowest: what other languages hold in 64 bits."""


class Place(NamedTuple):
    """A key in its scope. Ordered: keys of the run first, each scope by the bytes of the keys."""

    round: int
    """0: it belongs to the run, and survives rounds."""
    key: str


class Entry(Struct, frozen=True):
    """The value of a key."""

    value: bytes
    created: int
    """Revision at which the key was created."""
    modified: int
    """Revision of the latest change."""
    version: int
    """Changes since it was created, from 1."""


class Change(Struct, frozen=True):
    """One change of a key."""

    revision: int
    place: Place
    entry: Entry | None
    """The key from then on; None: it was deleted."""


class Condition(Struct, frozen=True):
    """What a key must be like. Exactly one field is set."""

    value: bytes | None = None
    modified: int | None = None
    """Its `modified`; 0: the key does not exist."""

    def holds(self, entry: Entry | None) -> bool:
        """Return whether a key, None if it does not exist, is like this."""
        if self.value is not None:
            return entry is not None and entry.value == self.value
        return self.modified == (0 if entry is None else entry.modified)


class Write(Struct, frozen=True):
    """A change that a worker wants."""

    key: str
    value: bytes | None = None
    """The new value; None: delete the key, unless there is an amount or a suffix."""
    amount: int | None = None
    """Add this to the number that the key holds."""
    suffix: bytes | None = None
    """Append this to the value of the key."""
    expected: Condition | None = None
    """Change the key only if it is like this."""


class Written(Struct, frozen=True):
    """What became of one write."""

    revision: int = 0
    """Of the change; 0: nothing was changed."""
    sum: int = 0
    """After an addition."""
    entry: Entry | None = None
    """After a comparison: the key as it is then, if it exists."""


class Answer(Struct, frozen=True):
    """What became of a request."""

    revision: int
    """After its last change."""
    results: tuple[Written, ...]
    """One for each write, in order."""
    digest: bytes = b""
    """Of the writes: another request with the same id has another one."""


CHANGES_MAX = 16_384
"""Changes of a run that are remembered for its watches."""
CHANGES_BYTES_MAX = 8_388_608
"""Bytes of their keys and values."""
REQUESTS_BYTES_MAX = 4_194_304
"""Bytes of the requests that are remembered, so that one that is sent again counts once."""
REQUEST_BYTES = 64
"""What each write of a request counts besides the request's id and the value in its answer."""
OBJECT_BYTES = 512
"""Memory of a key, a change or a request, besides their bytes."""
REVISIONS_PER_EPOCH = 1_000
"""Revisions begin at the epoch times this. An epoch is a time in ms, so no coordinator that starts
again without memory counts through the revisions of an earlier one."""
_AFTER_ALL = "\U0010ffff"
"""Sorts after every key: no key has this character."""


class Keyspace(Struct):
    """The keys of one run. Only its own methods change it."""

    run: int
    revision: int
    """Of the latest change; before the first one, where the revisions of this run begin."""
    compacted: int
    """Changes up to this revision are forgotten."""
    round: int = 0
    """The round that wrote last; 0: it is over. Its keys and requests end with it."""
    forgotten: int = 0
    """Requests of the round that were handled up to this revision are forgotten."""
    entries: dict[Place, Entry] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    """The places of the entries, in order."""
    bytes: int = 0
    """Of all keys and values."""
    changes: deque[Change] = field(default_factory=deque)
    """The latest changes, oldest first."""
    changes_bytes: int = 0
    requests: dict[str, Answer] = field(default_factory=dict)
    """The latest requests of the round, by id."""
    request_ids: deque[str] = field(default_factory=deque)
    """Their ids, oldest first. The first one of a dict from which others were removed is found only
    by a search; an OrderedDict takes 20 times as long to copy."""
    requests_bytes: int = 0

    @property
    def weight(self) -> int:
        """How much memory it takes, about, in bytes."""
        objects = len(self.entries) + len(self.changes) + len(self.requests)
        return self.bytes + self.changes_bytes + self.requests_bytes + objects * OBJECT_BYTES

    def take(
        self, changes: tuple[Change, ...], round: int, request_id: str, answer: Answer
    ) -> None:
        """Apply a request of a round; its changes follow the latest revision.

        Args:
            changes: in order.
            round: whose worker sent it.
            request_id: empty: it cannot be sent again.
            answer: to be given again.
        """
        self.round = round
        for change in changes:
            self._put(change.place, change.entry)
            self._remember_change(change)
            self.revision = change.revision
        if request_id:
            self._remember_request(request_id, answer)

    def restore(
        self,
        entries: Iterable[tuple[Place, Entry]],
        changes: Iterable[Change],
        requests: Iterable[tuple[str, Answer]],
    ) -> None:
        """Add what a snapshot has kept, in its order; the numbers of the keyspace stay."""
        for place, entry in entries:
            self._put(place, entry)
        for change in changes:
            self._remember_change(change)
        for request_id, answer in requests:
            self._remember_request(request_id, answer)

    def drop_round(self, round: int) -> None:
        """Drop what belongs to a round that is over. It is no change: its watches have ended."""
        begin = bisect_left(self.places, Place(round, ""))
        for place in self.places[begin:]:
            self.bytes -= size_of(place, self.entries.pop(place))
        del self.places[begin:]
        if any(change.place.round == round for change in self.changes):
            self.changes = deque(one for one in self.changes if one.place.round != round)
            self.changes_bytes = sum(size_of(one.place, one.entry) for one in self.changes)
        self.requests, self.request_ids = {}, deque()
        self.requests_bytes = self.forgotten = self.round = 0

    def find(self, round: int, prefix: str) -> tuple[int, int]:
        """Return where in `places` the keys with a prefix begin and end."""
        begin = bisect_left(self.places, Place(round, prefix))
        return begin, bisect_left(self.places, Place(round, prefix + _AFTER_ALL), begin)

    def copy(self) -> Keyspace:
        """Return a copy that later changes leave as it is."""
        return replace(
            self,
            entries=self.entries.copy(),
            places=self.places.copy(),
            changes=self.changes.copy(),
            requests=self.requests.copy(),
            request_ids=self.request_ids.copy(),
        )

    def _put(self, place: Place, entry: Entry | None) -> None:
        before = self.entries.get(place)
        if before is not None:
            self.bytes -= size_of(place, before)
        if entry is None:
            del self.entries[place]
            del self.places[bisect_left(self.places, place)]
            return
        if before is None:
            insort(self.places, place)
        self.entries[place] = entry
        self.bytes += size_of(place, entry)

    def _remember_change(self, change: Change) -> None:
        self.changes.append(change)
        self.changes_bytes += size_of(change.place, change.entry)
        while len(self.changes) > CHANGES_MAX or self.changes_bytes > CHANGES_BYTES_MAX:
            oldest = self.changes.popleft()
            self.changes_bytes -= size_of(oldest.place, oldest.entry)
            self.compacted = oldest.revision

    def _remember_request(self, request_id: str, answer: Answer) -> None:
        self.requests[request_id] = answer
        self.request_ids.append(request_id)
        self.requests_bytes += _size_of_request(request_id, answer)
        while self.requests_bytes > REQUESTS_BYTES_MAX:
            oldest = self.request_ids.popleft()
            gone = self.requests.pop(oldest)
            self.requests_bytes -= _size_of_request(oldest, gone)
            self.forgotten = gone.revision


def new_keyspace(run: int, since_epoch: int) -> Keyspace:
    """Return the empty keyspace of a run that the coordinator remembers since an epoch."""
    first = since_epoch * REVISIONS_PER_EPOCH
    return Keyspace(run, first, first)


def size_of(place: Place, entry: Entry | None) -> int:
    """Return what a key and its value count, in bytes."""
    return len(place.key.encode()) + (0 if entry is None else len(entry.value))


def size_of_answer(answer: Answer) -> int:
    """Return the bytes of the values in an answer."""
    return sum(len(one.entry.value) for one in answer.results if one.entry is not None)


def _size_of_request(request_id: str, answer: Answer) -> int:
    return len(request_id) + REQUEST_BYTES * len(answer.results) + size_of_answer(answer)
