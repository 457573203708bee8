"""docs/recipes.md: every command for `buf curl` has a twin for grpcurl that asks for the same.

test_commands.py runs those for `buf curl`. grpcurl is in no package index, so its commands are only
compared: method and request of the twin are those that were run.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from msgspec import Struct

from rallypoint.wire.limits import SERVICES
from support.docs.pages import REPOSITORY, Block, find_blocks

PAGE = REPOSITORY / "docs" / "recipes.md"
BUF = ("buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge")
GRPCURL = ("grpcurl", "-plaintext")
OF_OPERATORS = ("CoordinatorService", "EventService", "JobService", "NodeService")
BY_NAME = {
    service.full_name: service
    for service in (*SERVICES, *health_pb2.DESCRIPTOR.services_by_name.values())
}


class Call(Struct, frozen=True):
    """A call that a recipe makes, with either program."""

    where: str
    method: str
    """Full name, with a slash before the method."""
    request: str
    """JSON."""


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command of a block, without what only the shell needs."""
    for step in block.steps():
        text = step.command.replace("\\\n", "")
        yield shlex.split(re.sub(r"( &| \|\| true)$", "", text))


def read_call(block: Block, words: list[str], start: tuple[str, ...], base: str) -> Call | None:
    """Return the call that a command makes; None if it only asks reflection."""
    assert tuple(words[: len(start)]) == start, block.name
    words, request = words[len(start) :], "{}"
    if words[0] == "-d":
        request, words = words[1], words[2:]
    if "--list-services" in words or {"list", "describe"} & set(words):
        return None
    return Call(block.name, "".join(words).removeprefix(base), request)


BLOCKS = [block for block in find_blocks(PAGE) if block.language == "console"]
CALLS = [
    call
    for block in BLOCKS
    if block.kind == "test"
    for words in commands(block)
    if (call := read_call(block, words, BUF, "http://localhost:50051/"))
]
TWINS = [
    call
    for block in BLOCKS
    if block.kind == "not run"
    for words in commands(block)
    if (call := read_call(block, words, GRPCURL, "localhost:50051"))
]


def find_method(call: Call) -> MethodDescriptor:
    service, _, name = call.method.partition("/")
    method: MethodDescriptor = BY_NAME[service].methods_by_name[name]
    return method


@pytest.mark.parametrize("call", [*CALLS, *TWINS], ids=lambda call: call.where)
def test_request_parses(call: Call) -> None:
    """The method exists, and the JSON is a request of it."""
    method = find_method(call)
    message = message_factory.GetMessageClass(method.input_type)()
    json_format.Parse(call.request, message)
    request: dict[str, Any] = json.loads(call.request)

    assert len(message.ListFields()) == len(request)


def test_both_programs_ask_for_the_same() -> None:
    """In the same order."""
    assert [(one.method, one.request) for one in TWINS] == [
        (one.method, one.request) for one in CALLS
    ]


def test_every_method_for_operators_has_a_recipe() -> None:
    """None is missing."""
    methods = {
        f"{service.full_name}/{method.name}"
        for service in SERVICES
        if service.name in OF_OPERATORS
        for method in service.methods
    }

    assert sorted(methods - {call.method for call in CALLS}) == []
