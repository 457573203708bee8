"""One record of every kind with every field set, always the same ones; and every value of an enum.

What a version of the journal can hold. `write_format.py` keeps it as bytes, one file per format.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from msgspec import Struct

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.core.model.volatile import volatile_fields
from rallypoint.server.journal.codec.fields import hints_of, partial_of, plain

KINDS: tuple[type[JournalRecord], ...] = get_args(JournalRecord)
"""Every kind of record."""
_Struct = TypeVar("_Struct", bound=Struct)
_ENTRIES = 2
"""Entries of a collection."""


def full_records() -> list[JournalRecord]:
    """Return records of all kinds, with everything that a record can have."""
    return list(_full_records())


@functools.cache
def _full_records() -> tuple[JournalRecord, ...]:
    maker = Maker()
    records = [maker.make(kind, "") for kind in KINDS]
    sizes = {type(record): len(repr(record)) for record in records}
    for kind in sorted(KINDS, key=lambda kind: sizes[kind]):
        while any(maker.used[one] < len(one) for one in _enums_of(kind)):
            records.append(maker.make(kind, ""))
    return tuple(records)


class Maker:
    """Makes values that differ from each other and from all defaults."""

    def __init__(self) -> None:
        """Begin with the first value of everything."""
        self.used: Counter[Any] = Counter()
        """How many values of each enum were made; beyond its members, all of them were."""
        self._numbers = count(2)
        self._arms: Counter[Any] = Counter()

    def whole(self, kind: type[_Struct]) -> _Struct:
        """Return a struct with all its fields set, those that no journal keeps as well."""
        hints = hints_of(kind)
        return kind(**{name: self.make(hints[name], name) for name in kind.__struct_fields__})

    def make(self, hint: Any, name: str) -> Any:
        """Return a value of a type for a field of this name."""
        if (kind := partial_of(hint)) is not None:
            return {one: self.make(hints_of(kind)[one], one) for one in names_of(kind)}
        hint = plain(hint.__origin__ if get_origin(hint) is Annotated else hint)
        origin, arguments = get_origin(hint), get_args(hint)
        if hint in (int, bool, str, bytes):
            return self._scalar(hint, name)
        if origin in (Union, types.UnionType):
            arms = [one for one in arguments if one is not type(None)]
            self._arms[hint] += 1
            return self.make(arms[self._arms[hint] % len(arms)], name)
        if origin is tuple and arguments[1:] != (...,):
            return tuple(self.make(one, name) for one in arguments)
        if origin is not None:
            return origin(self.make(arguments[0], name) for _ in range(_ENTRIES))
        if issubclass(hint, Enum):
            members = list(hint)
            self.used[hint] += 1
            return members[self.used[hint] % len(members)]
        return self._built(hint)

    def _scalar(self, hint: Any, name: str) -> Any:
        number = next(self._numbers)
        if hint is bool:
            return True
        if hint is int:
            return number if number % 3 else -number * 10**12
        return f"{name} {number} ä" if hint is str else bytes((number % 256, 0, 255))

    def _built(self, kind: Any) -> Any:
        hints = hints_of(kind)
        return kind(**{name: self.make(hints[name], name) for name in names_of(kind)})


def names_of(kind: Any) -> list[str]:
    """Return the names of the fields of a struct or named tuple that a journal keeps."""
    names = kind.__struct_fields__ if issubclass(kind, Struct) else kind._fields
    volatile = volatile_fields(kind)
    return [name for name in names if name not in volatile]


def types_in(hint: Any) -> Iterator[Any]:
    """Yield the structs, named tuples and enums of which values of a type are made."""
    hint = partial_of(hint) or plain(hint)
    for argument in get_args(hint):
        if argument not in (..., type(None)):
            yield from types_in(argument)
    if get_origin(hint) is not None or hint in (int, bool, str, bytes):
        return
    if not isinstance(hint, types.UnionType):
        yield hint
    if isinstance(hint, type) and not issubclass(hint, Enum):
        kind: Any = hint
        for name in names_of(kind):
            yield from types_in(hints_of(kind)[name])


def _enums_of(kind: Any) -> set[Any]:
    return {one for one in types_in(kind) if issubclass(one, Enum)}
