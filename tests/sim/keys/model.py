"""A second key-value store, as simple as possible: what the contract says, without limits of speed.

It takes the requests as workers have sent them, in the order in which the coordinator took them,
and says what each answer must be. It never forgets anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rallypoint.v1 import key_value_service_pb2 as keys_pb2

NUMBER_DIGITS_MAX = 19
NUMBER_MAX = 2**63 - 1
VALUE_BYTES_MAX = 65_536


class Limits(NamedTuple):
    """The limits of a seed. Most are far lower than the product's, so that seeds reach them."""

    keys: int
    bytes: int
    changes: int
    """That are remembered for watches."""
    requests_bytes: int
    """Of requests that are remembered."""
    events: int
    """Of one answer to a watch."""


class Scoped(NamedTuple):
    """A key in its scope."""

    round: int
    """0: of the run."""
    key: str


class Held(NamedTuple):
    """A key and its value."""

    value: bytes
    created: int
    modified: int
    version: int

    def message(self, key: str, *, keys_only: bool = False) -> keys_pb2.KeyValue:
        """Return it as a reader sees it."""
        return keys_pb2.KeyValue(
            key=key,
            value=b"" if keys_only else self.value,
            create_revision=self.created,
            mod_revision=self.modified,
            version=self.version,
        )


class Step(NamedTuple):
    """One change."""

    revision: int
    place: Scoped
    held: Held | None
    """None: it was deleted."""


class Result(NamedTuple):
    """What became of one write."""

    revision: int = 0
    """0: nothing was changed."""
    sum: int = 0
    held: Held | None = None
    """After a comparison, the key as it is then."""


class Outcome(NamedTuple):
    """What became of a request."""

    refusal: str
    """The kind of refusal; empty when the request was taken."""
    revision: int = 0
    results: tuple[Result, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(slots=True)
class Store:
    """The keys of one run in one life of the coordinator."""

    run: int
    base: int
    """Where its revisions begin."""
    revision: int
    entries: dict[Scoped, Held] = field(default_factory=dict)
    history: list[Step] = field(default_factory=list)
    outcomes: dict[str, tuple[Outcome, ...]] = field(default_factory=dict)
    """By request: of its first attempt, and of each that came when that one was forgotten."""

    def copied(self) -> Store:
        """Return a copy that later changes leave as it is."""
        entries, history = dict(self.entries), list(self.history)
        return Store(self.run, self.base, self.revision, entries, history, dict(self.outcomes))

    def take(self, request: Any, round: int, limits: Limits) -> Outcome:
        """Make the changes of a request, unless it is refused."""
        entries, steps, results = dict(self.entries), list[Step](), list[Result]()
        for one in request.writes:
            revision = self.revision + len(steps) + 1
            place = Scoped(round, one.key)
            result = _decide(one, entries.get(place), revision)
            if isinstance(result, str):
                return Outcome(result)
            results.append(result[0])
            if result[0].revision:
                steps.append(Step(revision, place, result[1]))
                entries.pop(place, None)
                if result[1] is not None:
                    entries[place] = result[1]
        if self._is_too_much(entries, limits):
            return Outcome("limit reached")
        self.entries = entries
        self.history += steps
        self.revision += len(steps)
        return Outcome("", self.revision, tuple(results), tuple(steps))

    def _is_too_much(self, entries: dict[Scoped, Held], limits: Limits) -> bool:
        more_keys = len(entries) > max(len(self.entries), limits.keys)
        return more_keys or _size(entries) > max(_size(self.entries), limits.bytes)

    def drop_round(self) -> None:
        """Drop the keys of the round that is over."""
        self.entries = {place: held for place, held in self.entries.items() if not place.round}

    def changes(self, round: int, prefix: str, after: int, until: int) -> list[Step]:
        """Return the changes of keys with a prefix, after a revision and up to another."""
        return [
            step
            for step in self.history[max(0, after - self.base) : max(0, until - self.base)]
            if step.place.round == round and step.place.key.startswith(prefix)
        ]

    def listed(self, round: int, prefix: str) -> list[str]:
        """Return the keys with a prefix, in order."""
        of_scope = (place.key for place in self.entries if place.round == round)
        return sorted(key for key in of_scope if key.startswith(prefix))


def _size(entries: dict[Scoped, Held]) -> int:
    return sum(len(place.key.encode()) + len(held.value) for place, held in entries.items())


def _decide(
    one: keys_pb2.KeyWrite, held: Held | None, revision: int
) -> tuple[Result, Held | None] | str:
    """Return what becomes of a write and the key after it, or why it is refused."""
    kind = one.WhichOneof("write")
    if kind == "add":
        sum = _number(b"0" if held is None else held.value)
        if sum is None:
            return "key not a number"
        sum += one.add.amount
        if abs(sum) > NUMBER_MAX:
            return "sum too large"
        return Result(revision, sum), _next(held, b"%d" % sum, revision)
    if kind == "append":
        longer = (b"" if held is None else held.value) + one.append.value
        if len(longer) > VALUE_BYTES_MAX:
            return "limit reached"
        return Result(revision), _next(held, longer, revision)
    if kind == "put":
        return Result(revision), _next(held, one.put.value, revision)
    if kind == "compare_and_set":
        if not _holds(one.compare_and_set.expected, held):
            return Result(held=held), held
        after = _next(held, one.compare_and_set.value, revision)
        return Result(revision, held=after), after
    is_wanted = not one.delete.HasField("expected") or _holds(one.delete.expected, held)
    if held is None or not is_wanted:
        return Result(held=held), held
    return Result(revision), None


def _number(value: bytes) -> int | None:
    digits = value.removeprefix(b"-")
    return int(value) if digits.isdigit() and len(digits) <= NUMBER_DIGITS_MAX else None


def _next(held: Held | None, value: bytes, revision: int) -> Held:
    if held is None:
        return Held(value, revision, revision, 1)
    return Held(value, held.created, revision, held.version + 1)


def _holds(condition: keys_pb2.KeyCondition, held: Held | None) -> bool:
    if condition.WhichOneof("condition") == "value":
        return held is not None and held.value == condition.value
    return condition.mod_revision == (0 if held is None else held.modified)


def answer_of(request: keys_pb2.WriteKeysRequest, outcome: Outcome) -> keys_pb2.WriteKeysResponse:
    """Return the answer that a request must get, but for the coordinator's part of its header."""
    results = zip(request.writes, outcome.results, strict=True)
    return keys_pb2.WriteKeysResponse(
        header=keys_pb2.KeyValueHeader(revision=outcome.revision),
        results=[_written(one.key, result) for one, result in results],
    )


def _written(key: str, result: Result) -> keys_pb2.KeyWritten:
    return keys_pb2.KeyWritten(
        was_changed=result.revision > 0,
        revision=result.revision,
        sum=result.sum,
        kv=None if result.held is None else result.held.message(key),
    )


def event_of(step: Step) -> keys_pb2.KeyEvent:
    """Return a change as a watch must return it."""
    if step.held is None:
        gone = keys_pb2.KeyValue(key=step.place.key, mod_revision=step.revision)
        return keys_pb2.KeyEvent(kv=gone, was_deleted=True)
    return keys_pb2.KeyEvent(kv=step.held.message(step.place.key))
