"""The keys of one run: their values, the latest changes, and the latest requests.

The coordinator's state and a replay of its journal apply the same changes with the same code. What
is kept of the past is bounded by bytes, so both forget the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

from msgspec import Struct, field
from msgspec.structs import replace

from rallypoint.server.core.keyspace.values import Answer, Change, Entry, Place

CHANGES_MAX = 16_384
"""Changes of a run that are remembered for its watches."""
CHANGES_BYTES_MAX = 8_388_608
"""Bytes of their keys and values."""
REQUESTS_BYTES_MAX = 4_194_304
"""Bytes of the requests that are remembered, so that one that is sent again counts once."""
REQUEST_BYTES = 64
"""What a request counts besides its id and the values in its answer; one of a batch as well."""
_AFTER_ALL = "\U0010ffff"
"""Sorts after every key: no key has this character."""


class Keyspace(Struct):
    """The keys of one run. Only its own methods change it."""

    run: int
    revision: int = 0
    """Of the latest change; the first is 1."""
    round: int = 0
    """The round whose keys there are; 0 for none."""
    compacted: int = 0
    """Changes up to this revision are forgotten."""
    forgotten: int = 0
    """Requests whose changes lie at or below this revision are forgotten."""
    entries: dict[Place, Entry] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    """The places of the entries, in order."""
    bytes: int = 0
    """Of all keys and values."""
    changes: deque[Change] = field(default_factory=deque)
    """The latest changes, oldest first."""
    changes_bytes: int = 0
    requests: dict[str, Answer] = field(default_factory=dict)
    """The latest requests that changed something, oldest first."""
    requests_bytes: int = 0

    def take(self, changes: tuple[Change, ...], request_id: str, answer: Answer) -> None:
        """Apply the changes of a request, which follow the latest revision."""
        for change in changes:
            self._put(change.place, change.entry)
            self._remember_change(change)
            self.revision = change.revision
            self.round = change.place.round or self.round
        self._remember_request(request_id, answer)

    def drop_round(self, round: int) -> None:
        """Drop the keys of a round that is over. It is no change: their watches have ended too."""
        begin = bisect_left(self.places, Place(round, ""))
        for place in self.places[begin:]:
            self.bytes -= size_of(place, self.entries.pop(place))
        del self.places[begin:]
        kept = [change for change in self.changes if change.place.round != round]
        self.changes = deque(kept)
        self.changes_bytes = sum(size_of(change.place, change.entry) for change in kept)
        self.round = 0

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
        )

    def restore(self, place: Place, entry: Entry) -> None:
        """Add a key of a snapshot."""
        self._put(place, entry)
        self.round = place.round or self.round

    def restore_change(self, change: Change) -> None:
        """Add a remembered change of a snapshot; they come oldest first."""
        self._remember_change(change)

    def restore_request(self, request_id: str, answer: Answer) -> None:
        """Add a remembered request of a snapshot; they come oldest first."""
        self._remember_request(request_id, answer)

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
        self.requests_bytes += _size_of_request(request_id, answer)
        while self.requests_bytes > REQUESTS_BYTES_MAX:
            oldest = next(iter(self.requests))
            gone = self.requests.pop(oldest)
            self.requests_bytes -= _size_of_request(oldest, gone)
            self.forgotten = gone.revision


def size_of(place: Place, entry: Entry | None) -> int:
    """Return what a key and its value count, in bytes."""
    return len(place.key.encode()) + (0 if entry is None else len(entry.value))


def _size_of_request(request_id: str, answer: Answer) -> int:
    results = sum(
        REQUEST_BYTES + (0 if one.entry is None else len(one.entry.value)) for one in answer.results
    )
    return len(request_id) + results
