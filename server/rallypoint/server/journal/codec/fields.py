"""What the annotations of a struct and the fields of its message say."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import Descriptor, FieldDescriptor


class BadShape(Exception):
    """A struct and its message do not fit: a mistake in this checkout."""


# --- Structs ---


@cache
def hints_of(kind: Any) -> dict[str, Any]:
    """Return the types of the fields of a struct or a named tuple."""
    return get_type_hints(kind, include_extras=True)


def plain(hint: Any) -> Any:
    """Return the type below a NewType."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    return hint


def partial_of(hint: Any) -> Any:
    """Return the struct of which a dict has some fields, by name; None for any other type."""
    is_partial = get_origin(hint) is Annotated and get_origin(hint.__origin__) is dict
    return hint.__metadata__[0] if is_partial else None


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether None was possible."""
    hint = plain(hint)
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    rest = [one for one in get_args(hint) if one is not type(None)]
    if len(rest) == 1 and len(rest) < len(get_args(hint)):
        return plain(rest[0]), True
    return hint, False


def owner_of(field: FieldDescriptor) -> str:
    """Return the name of the message that a field belongs to."""
    assert field.containing_type is not None, field.full_name
    return field.containing_type.name


def oneof_of(field: FieldDescriptor) -> str:
    """Return the name of the oneof that a field belongs to."""
    assert field.containing_oneof is not None, field.full_name
    return field.containing_oneof.name


def places_of(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Yield the parts of a message in order; the arms of a oneof are one part."""
    seen = set()
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is None or len(oneof.fields) == 1:
            yield (field,)
        elif oneof.name not in seen:
            seen.add(oneof.name)
            yield tuple(oneof.fields)


def match_fields(name: str, expected: set[str], descriptor: Descriptor) -> None:
    """Raise BadShape unless a message has exactly the expected fields."""
    found = set(descriptor.fields_by_name)
    if expected != found:
        raise BadShape(
            f"{name}: without a proto field {sorted(expected - found)}, "
            f"without a field of the struct {sorted(found - expected)}"
        )
