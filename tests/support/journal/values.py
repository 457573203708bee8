"""Values of every kind of record, drawn as the annotations of the structs say."""

from __future__ import annotations

import types
from collections import deque
from enum import Enum
from typing import Any, Union, get_args, get_origin

from hypothesis import strategies as st

from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.fields import hints_of, partial_of, plain
from support.journal.full import names_of

KINDS: tuple[type[JournalRecord], ...] = get_args(JournalRecord)
"""Every kind of record."""
_NUMBERS = st.one_of(
    st.integers(0, 300), st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, 2**31, 2**53])
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: _NUMBERS,
    str: _TEXTS,
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
}
_MOST = 3
"""Entries of a collection."""


def records() -> st.SearchStrategy[JournalRecord]:
    """Return records of all kinds."""
    return st.sampled_from(KINDS).flatmap(values)


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a type."""
    if (kind := partial_of(hint)) is not None:
        return _built(kind).map(_some)
    hint = plain(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([values(one) for one in arguments])
    if origin is tuple and arguments[1:] != (...,):
        return st.tuples(*(values(one) for one in arguments))
    if origin in (tuple, deque, list, frozenset):
        entries = st.deferred(lambda: values(arguments[0]))
        return st.lists(entries, max_size=_MOST).map(origin)
    if origin is dict:
        keys, contents = arguments
        return st.dictionaries(values(keys), values(contents), max_size=_MOST)
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return _built(hint)


def _built(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a struct or a named tuple."""
    hints = hints_of(kind)
    return st.builds(kind, **{name: values(hints[name]) for name in names_of(kind)})


def _some(value: Any) -> dict[str, Any]:
    """Return the fields of a struct that a record of changes can have as values."""
    return {name: one for name in names_of(type(value)) if (one := getattr(value, name))}
