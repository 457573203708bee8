"""The journal's messages as descriptors: of this checkout, and as the latest release froze them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from rallypoint.journal.v1 import batch_pb2

REPOSITORY = Path(__file__).resolve().parents[3]
PACKAGE = batch_pb2.DESCRIPTOR.package
_FROZEN = REPOSITORY / "proto" / "v1.binpb"


def current_files() -> list[FileDescriptorProto]:
    """Return the journal's files, each after those that it imports."""
    found: dict[str, FileDescriptorProto] = {}
    _collect(batch_pb2.DESCRIPTOR, found)
    return list(found.values())


def frozen_files() -> list[FileDescriptorProto]:
    """Return the journal's files as of the latest release; none before the first with a journal."""
    frozen = FileDescriptorSet.FromString(_FROZEN.read_bytes())
    return [file for file in frozen.file if file.package == PACKAGE]


def list_fields(files: list[FileDescriptorProto]) -> list[str]:
    """Return a line for every field of a message and every value of an enum, sorted."""
    return sorted(line for file in files for line in _lines(file))


def _lines(file: FileDescriptorProto) -> Iterator[str]:
    for message in file.message_type:
        for field in message.field:
            name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
            kind = field.type_name.removeprefix(f".{PACKAGE}.") or name
            is_repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
            label = "repeated " if is_repeated else "optional " * field.proto3_optional
            yield f"{message.name}.{field.name} = {field.number}: {label}{kind}"
    for enum in file.enum_type:
        for value in enum.value:
            yield f"{enum.name}.{value.name} = {value.number}"


def _collect(file: FileDescriptor, found: dict[str, FileDescriptorProto]) -> None:
    for imported in file.dependencies:
        _collect(imported, found)
    if file.name not in found:
        found[file.name] = FileDescriptorProto()
        file.CopyToProto(found[file.name])
