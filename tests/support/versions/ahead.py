"""The contract one version ahead: every message, enum and oneof has something new.

The same can be had of the journal. The messages are made of the descriptors of this checkout, in a
pool for themselves, so both versions live in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from google.protobuf import any_pb2, duration_pb2, field_mask_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from support.journal.contract import current_files

NEW_NUMBER = 900
NEW_FIELD, NEW_PART, NEW_ARM = "new_field", "new_part", "new_arm"
PACKAGE = "rallypoint.v1"


class Ahead:
    """Messages of the next version."""

    def __init__(self, package: str = PACKAGE) -> None:
        """Add to the contract of this checkout: the API, or another package of ours."""
        self._package = package
        self._pool = DescriptorPool()
        for module in (any_pb2, duration_pb2, field_mask_pb2, timestamp_pb2):
            self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        from google.protobuf import descriptor_pb2

        self._pool.AddSerializedFile(descriptor_pb2.DESCRIPTOR.serialized_pb)
        for file in _api_files() if package == PACKAGE else current_files():
            if not file.name.endswith("/limits.proto"):
                _grow(file)
            self._pool.AddSerializedFile(file.SerializeToString())

    def read(self, message: Message) -> Any:
        """Return a message of this version as one of the next, with everything new in it."""
        name = message.DESCRIPTOR.full_name
        kind = GetMessageClass(self._pool.FindMessageTypeByName(name))
        grown = kind.FromString(message.SerializeToString())
        fill(grown)
        return grown

    def make(self, name: str) -> Any:
        """Return an empty message of the next version."""
        return GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))()


def _api_files() -> Sequence[FileDescriptorProto]:
    data = (files(PACKAGE) / "descriptors.binpb").read_bytes()
    return FileDescriptorSet.FromString(data).file


def fill(message: Any) -> None:
    """Set the new fields of a message and of everything in it."""
    for field, value in message.ListFields():
        if field.message_type is None or not field.message_type.full_name.startswith("rallypoint."):
            continue
        if field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else (value,):
            fill(one)
    setattr(message, NEW_FIELD, "new")
    getattr(message, NEW_PART).SetInParent()


def _grow(file: FileDescriptorProto) -> None:
    """Add something to everything in a file."""
    for enum in file.enum_type:
        _add_value(enum)
    for message in file.message_type:
        _add_fields(message, f".{file.package}.{message.name}")


def _add_fields(message: DescriptorProto, name: str) -> None:
    for enum in message.enum_type:
        _add_value(enum)
    for nested in message.nested_type:
        if not nested.options.map_entry:
            _add_fields(nested, f"{name}.{nested.name}")
    optional = FieldDescriptorProto.LABEL_OPTIONAL
    message.field.add(
        name=NEW_FIELD,
        number=NEW_NUMBER,
        label=optional,
        type=FieldDescriptorProto.TYPE_STRING,
    )
    kind = FieldDescriptorProto.TYPE_MESSAGE
    message.field.add(
        name=NEW_PART, number=NEW_NUMBER + 1, label=optional, type=kind, type_name=name
    )
    real = [one for one in message.oneof_decl if not one.name.startswith("_")]
    for index in range(len(real)):
        message.field.add(
            name=f"{NEW_ARM}_{index}" if index else NEW_ARM,
            number=NEW_NUMBER + 2 + index,
            label=optional,
            type=kind,
            type_name=name,
            oneof_index=index,
        )


def _add_value(enum: EnumDescriptorProto) -> None:
    prefix = enum.value[0].name.removesuffix("_UNSPECIFIED")
    enum.value.add(name=f"{prefix}_NEW", number=NEW_NUMBER)
