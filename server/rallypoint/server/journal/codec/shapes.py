"""Translates between values of the core and protobuf messages, as their annotations say.

A message mirrors a struct: it has the struct's name and a field for each of the struct's fields, of
the same name. The rules:

* A number is an int64, and an enum has the same members after a prefix. Its zero is never valid.
* A tuple, list or deque is repeated. So is a set, sorted: equal values have equal bytes.
* A dict is repeated, each entry a message whose two parts are the key and the value. A tuple of
  fixed length is a message too. Such a message has a part for each element, in order; a part that
  is one of several types is a oneof.
* Some fields of a struct, in a dict by name, are its message without the others.
* A field whose default is not zero or empty has presence (`optional`). So a field that an earlier
  version did not write has its default, and a zero that was written stays a zero.

Both directions are closures that are made once per type. They use what the runtime does in C: a
message is made from nested dicts in one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple, get_args, get_origin

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, asdict, fields

from rallypoint.server.core.memory.durable import default_of
from rallypoint.server.core.model.volatile import volatile_fields
from rallypoint.server.journal.codec.fields import (
    BadShape,
    hints_of,
    match_fields,
    oneof_of,
    owner_of,
    partial_of,
    places_of,
    plain,
    without_none,
)

_SCALARS: dict[type, int] = {
    int: FieldDescriptor.TYPE_INT64,
    str: FieldDescriptor.TYPE_STRING,
    bytes: FieldDescriptor.TYPE_BYTES,
    bool: FieldDescriptor.TYPE_BOOL,
}
_SEQUENCES = (tuple, list, deque, frozenset)


class BadMessage(Exception):
    """A message that no value of this version has; the text says where and why."""


class Shape(NamedTuple):
    """How values of one type are written and read."""

    encode: Callable[[Any], Any] | None
    """Returns what a message's constructor takes for a value; None: the value itself."""
    decode: Callable[[Any], Any] | None
    """Returns the value of a field's content; None: the content itself."""


class Part(NamedTuple):
    """How one part of a message is written and read."""

    name: str
    encode: Callable[[Any], Any] | None
    read: Callable[[Message], Any]


class Shapes:
    """Makes shapes; each type once."""

    def __init__(self) -> None:
        """Know none yet."""
        self._known: dict[tuple[Any, str], Shape] = {}

    def struct(self, kind: Any, descriptor: Descriptor) -> Shape:
        """Return the shape of a struct or a named tuple.

        Args:
            kind: its type.
            descriptor: of its message, which has the same name.

        Raises:
            BadShape: when the two do not fit.
        """
        known = self._known.get((kind, descriptor.full_name))
        if known is None:
            if kind.__name__ != descriptor.name:
                raise BadShape(f"{kind.__name__} is a {descriptor.name}")
            make = self._make_struct if issubclass(kind, Struct) else self._make_named_tuple
            known = self._known[kind, descriptor.full_name] = make(kind, descriptor)
        return known

    def _make_struct(self, kind: type[Struct], descriptor: Descriptor) -> Shape:
        left_out = volatile_fields(kind)
        parts = self._parts(kind, descriptor)
        return Shape(_struct_encoder(parts, left_out), _reader(kind, parts))

    def _parts(self, kind: type[Struct], descriptor: Descriptor) -> list[Part]:
        """Return a part for each field of a struct, in order."""
        hints, left_out, infos = hints_of(kind), volatile_fields(kind), fields(kind)
        match_fields(kind.__name__, {info.name for info in infos} - left_out, descriptor)
        return [
            _absent(info)
            if info.name in left_out
            else self._field(info, hints[info.name], descriptor)
            for info in infos
        ]

    def _make_named_tuple(self, kind: Any, descriptor: Descriptor) -> Shape:
        hints = hints_of(kind)
        match_fields(kind.__name__, set(kind._fields), descriptor)
        parts = [
            self._single(hints[name], descriptor.fields_by_name[name]) for name in kind._fields
        ]
        return Shape(_tuple_encoder(parts), _reader(kind, parts))

    def _field(self, info: FieldInfo, hint: Any, descriptor: Descriptor) -> Part:
        field = descriptor.fields_by_name[info.name]
        if (partial := partial_of(hint)) is not None:
            return self._partial(partial, field)
        hint, may_be_none = without_none(hint)
        if field.is_repeated:
            return self._repeated(info, hint, field)
        part = self._single(hint, field)
        default = default_of(info)
        is_message = field.message_type is not None
        if default is NODEFAULT and may_be_none:
            default = None
        needs_presence = may_be_none or (default is not NODEFAULT and (is_message or bool(default)))
        if isinstance(default, Enum):
            needs_presence = True
        if (needs_presence or is_message) != field.has_presence:
            raise BadShape(f"{field.full_name} has to be optional: {needs_presence}")
        if may_be_none and default is not None:
            raise BadShape(f"{field.full_name} may be None, and its default is not None")
        if not needs_presence:
            return part
        return part._replace(read=_read_or(part, default))

    def _partial(self, kind: type[Struct], field: FieldDescriptor) -> Part:
        """Return the part for some fields of a struct, by name: a message with only those."""
        if field.message_type is None or field.message_type.name != kind.__name__:
            raise BadShape(f"{field.full_name} is not a {kind.__name__}")
        parts = {part.name: part for part in self._parts(kind, field.message_type)}
        get = attrgetter(field.name)

        def encode(values: Mapping[str, Any]) -> dict[str, Any]:
            made = dict(values)
            for name, value in values.items():
                if (convert := parts[name].encode) is not None:
                    made[name] = convert(value)
            return made

        def read(message: Message) -> dict[str, Any]:
            content = get(message)
            return {one.name: parts[one.name].read(content) for one, _ in content.ListFields()}

        return Part(field.name, encode, read)

    def _repeated(self, info: FieldInfo, hint: Any, field: FieldDescriptor) -> Part:
        """Return the part for a field whose value is a collection."""
        origin, arguments = get_origin(hint), get_args(hint)
        default = default_of(info)
        if default is not NODEFAULT and default:
            raise BadShape(f"{field.full_name} is empty when it is absent, unlike its default")
        if origin is dict:
            shape = self._entries(arguments, field)
            return _repeated_part(field.name, shape, dict, _items)
        is_uniform = origin in _SEQUENCES[1:] or (origin is tuple and arguments[1:] == (...,))
        if not is_uniform:
            raise BadShape(f"{field.full_name} is repeated, and {hint} is not a collection")
        shape = self._element(arguments[0], field)
        return _repeated_part(field.name, shape, origin, sorted if origin is frozenset else None)

    def _entries(self, hints: tuple[Any, ...], field: FieldDescriptor) -> Shape:
        """Return the shape of an entry of a dict."""
        if field.message_type is None:
            raise BadShape(f"{field.full_name} has no messages, unlike a dict")
        return self._fixed(hints, field.message_type)

    def _single(self, hint: Any, field: FieldDescriptor) -> Part:
        """Return the part for a field with one value that is never None."""
        if field.is_repeated:
            raise BadShape(f"{field.full_name} is repeated, and {hint} is one value")
        encode, decode = self._element(hint, field)
        name, get = field.name, attrgetter(field.name)
        if field.message_type is not None:
            return Part(name, encode, _read_message(field, get, decode))
        return Part(name, encode, get if decode is None else _chain(get, decode))

    def _element(self, hint: Any, field: FieldDescriptor) -> Shape:
        """Return the shape of one value of a field."""
        hint = plain(hint)
        if get_origin(hint) is tuple and field.message_type is not None:
            return self._fixed(get_args(hint), field.message_type)
        if hint in _SCALARS and field.type == _SCALARS[hint]:
            return Shape(None, None)
        if isinstance(hint, type) and issubclass(hint, Enum) and field.enum_type is not None:
            return _enum_shape(hint, field.enum_type)
        if isinstance(hint, type) and field.message_type is not None:
            return self.struct(hint, field.message_type)
        raise BadShape(f"{field.full_name} does not fit {hint}")

    def _fixed(self, hints: tuple[Any, ...], descriptor: Descriptor) -> Shape:
        """Return the shape of a tuple of fixed length, or of an entry of a dict."""
        places = list(places_of(descriptor))
        if len(places) != len(hints):
            raise BadShape(f"{descriptor.full_name} has {len(places)} parts, not {len(hints)}")
        parts = [
            self._single(hint, place[0]) if len(place) == 1 else self._choice(hint, place)
            for hint, place in zip(hints, places, strict=True)
        ]
        return Shape(_tuple_encoder(parts), _reader(_of_parts, parts))

    def _choice(self, hint: Any, arms: tuple[FieldDescriptor, ...]) -> Part:
        """Return the part for a value of one of several types, each an arm of a oneof."""
        oneof = oneof_of(arms[0])
        kinds = [plain(one) for one in get_args(hint)]
        if len(kinds) != len(arms):
            raise BadShape(f"{oneof} has {len(arms)} arms, and {hint} has {len(kinds)}")
        singles = {kind: self._single(kind, arm) for kind, arm in zip(kinds, arms, strict=True)}
        by_name = {part.name: part for part in singles.values()}

        def encode(value: Any) -> dict[str, Any]:
            part = singles[type(value)]
            return {part.name: value if part.encode is None else part.encode(value)}

        def read(message: Message) -> Any:
            name = message.WhichOneof(oneof)
            if name is None:
                raise BadMessage(f"{message.DESCRIPTOR.name}.{oneof} is not set")
            return by_name[name].read(message)

        return Part("", encode, read)


# --- Encoding ---


def _struct_encoder(parts: list[Part], left_out: frozenset[str]) -> Callable[[Any], dict[str, Any]]:
    changed = [(part.name, part.encode) for part in parts if part.encode is not None]
    dropped = sorted(left_out)

    def encode(value: Any) -> dict[str, Any]:
        made = asdict(value)
        for name in dropped:
            del made[name]
        for name, convert in changed:
            one = made[name]
            if one is not None:
                made[name] = convert(one)
        return made

    return encode


def _tuple_encoder(parts: list[Part]) -> Callable[[Any], dict[str, Any]]:
    """Return the encoder of a tuple; a part without a name becomes a dict itself."""
    names = [part.name for part in parts]
    if all(part.encode is None for part in parts):
        return lambda value: dict(zip(names, value, strict=True))

    def encode(value: Any) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for part, one in zip(parts, value, strict=True):
            converted = one if part.encode is None else part.encode(one)
            if part.name:
                made[part.name] = converted
            else:
                made.update(converted)
        return made

    return encode


def _enum_shape(kind: type[Enum], descriptor: EnumDescriptor) -> Shape:
    zero = descriptor.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    expected = {zero, *(prefix + member.name for member in kind)}
    if expected != set(descriptor.values_by_name):
        raise BadShape(f"{descriptor.name} and {kind.__name__} have different members")
    numbers = {member: descriptor.values_by_name[prefix + member.name].number for member in kind}
    members = {number: member for member, number in numbers.items()}

    def decode(number: int) -> Enum:
        member = members.get(number)
        if member is None:
            raise BadMessage(f"{descriptor.name} has no value {number}")
        return member

    return Shape(numbers.__getitem__, decode)


def _repeated_part(
    name: str, shape: Shape, collection: Any, order: Callable[[Any], Any] | None
) -> Part:
    convert, decode = shape
    get = attrgetter(name)
    encode: Callable[[Any], Any] | None = None
    if convert is not None and order is not None:
        encode = lambda values: [convert(one) for one in order(values)]  # noqa: E731
    elif convert is not None:
        encode = lambda values: [convert(one) for one in values]  # noqa: E731
    elif order is not None:
        encode = order
    elif collection is not tuple:
        encode = list
    if decode is None:
        return Part(name, encode, _chain(get, collection))
    return Part(name, encode, lambda message: collection([decode(one) for one in get(message)]))


def _items(entries: Mapping[Any, Any]) -> Any:
    return entries.items()


# --- Decoding ---


def _reader(make: Callable[..., Any], parts: list[Part]) -> Callable[[Message], Any]:
    if len(parts) > 1 and all(isinstance(part.read, attrgetter) for part in parts):
        get_all = attrgetter(*(part.name for part in parts))
        return lambda message: make(*get_all(message))
    reads = [part.read for part in parts]
    return lambda message: make(*[read(message) for read in reads])


def _of_parts(*parts: Any) -> tuple[Any, ...]:
    return parts


def _read_message(
    field: FieldDescriptor, get: Callable[[Any], Any], decode: Callable[[Any], Any] | None
) -> Callable[[Message], Any]:
    assert decode is not None
    name = field.name

    def read(message: Message) -> Any:
        if not message.HasField(name):
            raise BadMessage(f"{owner_of(field)}.{name} is missing")
        return decode(get(message))

    return read


def _read_or(part: Part, default: Any) -> Callable[[Message], Any]:
    name, read = part.name, part.read
    return lambda message: read(message) if message.HasField(name) else default


def _chain(first: Callable[[Any], Any], then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: then(first(value))


def _absent(info: FieldInfo) -> Part:
    """Return the part for a field that no message has."""
    if default_of(info) is NODEFAULT:
        raise BadShape(f"{info.name} has no default, so it cannot be left out")
    factory = info.default_factory
    if factory is not NODEFAULT:
        return Part(info.name, None, lambda _: factory())
    return Part(info.name, None, lambda _: info.default)
