"""Counts the fields of a message before it is decoded.

An empty entry of a list has two bytes, and takes 50 when it is decoded: a message that is not too
long may still hold up the coordinator, and fill its memory.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor

from rallypoint.wire.limits import find_rule

OTHERS_MAX = 64
"""Fields beside those of lists, also those that only newer clients know."""


def fields_max(request: Descriptor) -> int:
    """Return how many fields a request may have; 0: they need not be counted."""
    rules = (
        find_rule(field)
        for field in request.fields
        if field.is_repeated and field.message_type is not None
    )
    entries = sum(rule.items_max for rule in rules if rule is not None)
    return entries + OTHERS_MAX if entries else 0


def has_more_fields(message: bytes, most: int) -> bool:
    """Return whether a message has more fields than that, each entry of a list counted.

    What is no message may seem to have fewer: it cannot be decoded.
    Source: protobuf.dev/programming-guides/encoding.
    """
    at, end = 0, len(message)
    try:
        while at < end:
            most -= 1
            if most < 0:
                return True
            tag, at = _read_number(message, at)
            match tag & 7:
                case 0:  # a number
                    _, at = _read_number(message, at)
                case 1:
                    at += 8
                case 2:  # bytes
                    size, at = _read_number(message, at)
                    at += size
                case 5:
                    at += 4
                case 3 | 4:
                    pass  # a group is the fields between its ends
                case _:
                    return False
    except IndexError:
        pass
    return False


def _read_number(message: bytes, at: int) -> tuple[int, int]:
    """Return a number at a place, and the place after it."""
    number = shift = 0
    while True:
        byte = message[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError
