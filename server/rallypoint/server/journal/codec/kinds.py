"""The kinds of records, and the shape of each."""

from __future__ import annotations

from functools import cached_property
from typing import Any, get_args

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rallypoint.journal.v1 import batch_pb2
from rallypoint.server.core.memory.replay import JournalRecord
from rallypoint.server.journal.codec.fields import BadShape
from rallypoint.server.journal.codec.shapes import Shape, Shapes

_SHAPES = Shapes()


class Kind:
    """One kind of record; its shape is made at the first use."""

    def __init__(self, type: type, field: FieldDescriptor) -> None:
        """Belong to the arm `field` of Record."""
        self.type = type
        self.name: str = field.name
        self.number: int = field.number
        self.message: Any = getattr(batch_pb2.Record(), field.name).__class__

    def to_message(self, record: JournalRecord) -> Message:
        """Return a record of this kind as its message."""
        assert self._shape.encode is not None
        message: Message = self.message(**self._shape.encode(record))
        return message

    def from_message(self, message: Message) -> JournalRecord:
        """Return the record of a message.

        Raises:
            BadMessage: it has something that this version does not know.
        """
        assert self._shape.decode is not None
        record: JournalRecord = self._shape.decode(message)
        return record

    @cached_property
    def _shape(self) -> Shape:
        return _SHAPES.struct(self.type, self.message.DESCRIPTOR)


def _find_kinds() -> dict[type, Kind]:
    fields = batch_pb2.Record.DESCRIPTOR.oneofs_by_name["kind"].fields
    by_name = {kind.name: one for one in fields if (kind := one.message_type) is not None}
    types = {one.__name__: one for one in get_args(JournalRecord)}
    if by_name.keys() != types.keys():
        raise BadShape(f"records and their messages differ: {by_name.keys() ^ types.keys()}")
    return {one: Kind(one, by_name[name]) for name, one in types.items()}


KINDS = _find_kinds()
"""By the type of the record."""
KINDS_BY_NAME = {kind.name: kind for kind in KINDS.values()}
"""By the name of the arm of Record."""
