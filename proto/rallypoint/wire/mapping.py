"""Maps structs to messages and back, by the names and types of their fields.

A struct of a core mirrors a message of the contract. What the two have in common is not written a
second time:

* A field of the struct has the name of one of the message; or it is `x_ms`, and the message has the
  Duration `x`. Where names differ, the mapper has both.
* Each member of an enum has its name in the message's enum, after a prefix. A number that has no
  member reads as UNKNOWN, or else as UNSPECIFIED, or else as the default; without any of them, only
  known numbers may come.
* What may be None has presence, and is absent when it is None.
* What is absent reads as the default. A default of zero is absent, where the field has presence.

Any other field is named `apart`, and the caller passes it. A field that only one side has fails the
import, so no change of one side is forgotten on the other.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import cached_property
from typing import (
    Any,
    Generic,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from rallypoint.wire.durations import to_ms, to_unix_ms

_Kind = TypeVar("_Kind", bound=Enum)
_Struct = TypeVar("_Struct", bound=Struct)
_Message = TypeVar("_Message", bound=Message)
_Given = TypeVar("_Given", contravariant=True)
_Made = TypeVar("_Made", covariant=True)
_Convert = Callable[[Any], Any]


class Misfit(Exception):
    """A struct and its message do not agree: a mistake in this checkout."""


def numbers_of(
    kind: type[_Kind], enum: EnumDescriptor, renamed: Mapping[_Kind, str] | None = None
) -> dict[_Kind, Any]:
    """Return the number of each member of an enum in the contract.

    Args:
        kind: the enum.
        enum: the contract's, whose names have a prefix.
        renamed: members that have another name there, without the prefix.

    Raises:
        Misfit: when the contract lacks a member.
    """
    prefix = prefix_of(enum)
    names = {member: prefix + (renamed or {}).get(member, member.name) for member in kind}
    missing = sorted(set(names.values()).difference(enum.values_by_name))
    if missing:
        raise Misfit(f"{enum.full_name} lacks {missing}")
    return {member: enum.values_by_name[name].number for member, name in names.items()}


def prefix_of(enum: EnumDescriptor) -> str:
    """Return what all names of an enum of the contract begin with."""
    return enum.values_by_number[0].name.removesuffix("UNSPECIFIED")


class _Mapped(Protocol[_Given, _Made]):
    """Maps a struct or a message; `rest` has the fields that are apart."""

    def __call__(self, one: _Given, /, **rest: Any) -> _Made: ...


class Mapper(Generic[_Struct, _Message]):
    """Maps one struct to one message, and back.

    Its functions are compiled at their first use, as those of a dataclass are, so that they cost no
    more than the same by hand.
    """

    def __init__(
        self,
        struct: type[_Struct],
        message: type[_Message],
        renamed: Mapping[str, str] | None = None,
        *,
        apart: Iterable[str] = (),
        nested: Iterable[Mapper[Any, Any]] = (),
    ) -> None:
        """Find what the two have in common.

        Args:
            struct: its type.
            message: its type.
            renamed: fields of the struct, each with the message's name for it. A Unix time in ms is
                the Timestamp that is named here.
            apart: fields of either that are not mapped.
            nested: mappers of structs in its fields that have renamed fields.

        Raises:
            Misfit: when another field has no counterpart.
        """
        self._struct, self._message = struct, message
        left, names = set(apart), renamed or {}
        hints, mappers = get_type_hints(struct), {mapper._struct: mapper for mapper in nested}
        known: Mapping[str, Any] = message.DESCRIPTOR.fields_by_name
        self._encoded: dict[str, str] = {}
        self._decoded: dict[str, str] = {}
        self._used: dict[str, Any] = {}
        for info in fields(struct):
            name = names.get(info.name, info.name)
            field = known.get(name) or known.get(name.removesuffix("_ms"))
            if field is not None and info.name not in left:
                encoded, decoded = _map_field(info, hints[info.name], field, mappers, self._used)
                self._encoded[field.name], self._decoded[info.name] = encoded, decoded
        self._apart_there = {name: None for name in known if name not in self._encoded}
        self._apart_here = {
            info.name: info.default for info in fields(struct) if info.name not in self._decoded
        }
        alone = self._apart_there.keys() | self._apart_here.keys()
        if alone != left:
            raise Misfit(f"{struct.__name__} and its message differ in {sorted(alone ^ left)}")

    @cached_property
    def encode(self) -> _Mapped[_Struct, Any]:
        """Returns what the constructor of an outer message takes for its field with this one."""
        return self._compile(dict, self._encoded, self._apart_there)

    @cached_property
    def to_message(self) -> _Mapped[_Struct, _Message]:
        """Returns a struct as a message; `rest` has the message's fields that are apart."""
        return self._compile(self._message, self._encoded, self._apart_there)

    @cached_property
    def to_struct(self) -> _Mapped[_Message, _Struct]:
        """Returns a message as a struct; `rest` has the struct's fields that are apart."""
        return self._compile(self._struct, self._decoded, self._apart_here)

    def _compile(
        self, make: Callable[..., Any], mapped: Mapping[str, str], apart: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return the function that makes something of `one`; what is apart are its keywords."""
        used = {"make": make, **self._used}
        parameters = ["one", *(["*"] if apart else [])]
        for name, default in apart.items():
            used[f"rest_{name}"] = default
            parameters.append(name if default is NODEFAULT else f"{name}=rest_{name}")
        pairs = [*mapped.items(), *zip(apart, apart, strict=True)]
        arguments = ", ".join(f"{name}={value}" for name, value in pairs)
        source = f"lambda {', '.join(parameters)}: make({arguments})"
        compiled: Callable[..., Any] = eval(source, used)
        return compiled


def _map_field(
    info: FieldInfo,
    hint: Any,
    field: FieldDescriptor,
    mappers: Mapping[Any, Mapper[Any, Any]],
    used: dict[str, Any],
) -> tuple[str, str]:
    """Return expressions: of the struct `one` for the message, and of the message `one` for it.

    What they use is added to `used`.
    """
    options = [one for one in get_args(hint) if one is not type(None)]
    may_be_none = get_origin(hint) in (Union, types.UnionType) and len(options) == 1
    is_many, name = field.is_repeated, info.name
    if is_many and get_origin(hint) is not tuple:
        raise Misfit(f"{field.full_name} is repeated, and {hint} is not a tuple")
    if may_be_none and not field.has_presence:
        raise Misfit(f"{field.full_name} has no presence, and {name} may be None")
    one = options[0] if is_many or may_be_none else hint
    convert = _map_value(one, field, mappers, info.default)
    given, held = f"one.{name}", f"one.{field.name}"
    if convert is not None:
        used[f"encode_{name}"], used[f"decode_{name}"] = convert
    if is_many and convert is not None:
        encoded = f"[encode_{name}(each) for each in {given}]"
        return encoded, f"tuple([decode_{name}(each) for each in {held}])"
    if is_many:
        return given, f"tuple({held})"
    encoded, decoded = given, held
    if convert is not None:
        encoded, decoded = f"encode_{name}({given})", f"decode_{name}({held})"
    if field.has_presence and (may_be_none or info.default is not NODEFAULT):
        default = used[f"default_{name}"] = None if info.default is NODEFAULT else info.default
        decoded = f'{decoded} if one.HasField("{field.name}") else default_{name}'
        if default is not None and not default:
            encoded = f"{encoded} if {given} else None"
        elif may_be_none and convert is not None:
            encoded = f"None if {given} is None else {encoded}"
    return encoded, decoded


def _map_value(
    hint: Any, field: FieldDescriptor, mappers: Mapping[Any, Mapper[Any, Any]], default: Any
) -> tuple[_Convert, _Convert] | None:
    """Return what encodes and what decodes one value; None: nothing has to be done."""
    while hasattr(hint, "__supertype__"):  # of a NewType
        hint = hint.__supertype__
    message = field.message_type
    if hint in (int, str, bytes, bool) and message is None:
        return None
    if hint is int and message is not None:
        if message.full_name == Duration.DESCRIPTOR.full_name:
            return _split_ms, to_ms
        if message.full_name == Timestamp.DESCRIPTOR.full_name:
            return _split_ms, to_unix_ms
    elif isinstance(hint, type) and issubclass(hint, Enum) and field.enum_type is not None:
        numbers = numbers_of(hint, field.enum_type)
        members = {number: member for member, number in numbers.items()}
        unknown = hint.__members__.get("UNKNOWN") or hint.__members__.get("UNSPECIFIED")
        if unknown is None and isinstance(default, hint):
            unknown = default
        if unknown is None:
            return numbers.__getitem__, members.__getitem__
        return numbers.__getitem__, lambda number: members.get(number, unknown)
    elif isinstance(hint, type) and issubclass(hint, Struct) and message is not None:
        mapper = mappers.get(hint) or Mapper(hint, GetMessageClass(message))
        return mapper.encode, mapper.to_struct
    raise Misfit(f"{field.full_name} does not fit {hint}")


def _split_ms(ms: int) -> dict[str, int]:
    """Return what the constructors of Duration and Timestamp take."""
    return {"seconds": ms // 1000, "nanos": ms % 1000 * 1_000_000}
