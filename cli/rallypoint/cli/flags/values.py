"""Parsers for the values of single flags. Each raises BadValue for a bad one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from rallypoint.base.addresses import first_host, is_wildcard, parse_endpoint, parse_endpoints
from rallypoint.base.limits import COUNT_MAX
from rallypoint.base.values import BadValue, natural_int, text, whole_number


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts these words only."""

    def parse(value: str) -> str:
        if value not in choices:
            raise BadValue(f"{value!r} is not one of {', '.join(choices)}")
        return value

    return parse


def number(value: str) -> float:
    """Parse any number."""
    try:
        return float(value)
    except ValueError:
        raise BadValue(f"{value!r} is not a number") from None


def within(low: float, high: float, kind: type[float] = float) -> Callable[[str], Any]:
    """Return a parser of numbers of this range, int or float, such as seconds."""

    def parse(value: str) -> float:
        parsed = whole_number(value) if kind is int else number(value)
        if not low <= parsed <= high:
            if high >= COUNT_MAX and parsed > high:
                raise BadValue(f"{value!r} is more than {high}")
            range_ = f"within {low:g} and {high:.0f}" if high < COUNT_MAX else f"{low:.10g} or more"
            raise BadValue(f"{value!r} is not {range_}")
        return parsed

    return parse


def member_of(members: Iterable[Enum]) -> Callable[[str], Any]:
    """Return a parser of the values of an enum, or of some of its members."""
    by_value = {one.value: one for one in members}

    def parse(value: str) -> Enum:
        return by_value[one_of(*by_value)(value)]

    return parse


def signal_number(value: str) -> int:
    """Parse the name or number of a signal that a program can catch."""
    name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
    number = signal.Signals.__members__.get(name)
    if number is None and value.isdecimal() and int(value) in set(signal.Signals):
        number = signal.Signals(int(value))
    if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
        raise BadValue(f"{value!r} is not a signal that a program can catch")
    return int(number)


def port_number(value: str) -> int:
    """Parse a port; 0 means any free one."""
    port = natural_int(value)
    if port > 65_535:
        raise BadValue(f"{value!r} is not a port (0 to 65535)")
    return port


def journal_place(value: str) -> str:
    """Parse where a coordinator keeps its journal: `memory`, `sqlite:PATH` or `etcd://…`."""
    kind, colon, path = text(value).partition(":")
    if value == "memory" or (kind == "sqlite" and path) or (kind == "etcd" and path[:2] == "//"):
        return value
    if not colon and "/" in value:
        raise BadValue(f"{value!r} has no kind: write sqlite:{value}")
    raise BadValue(f"{value!r} is not memory, sqlite:PATH or etcd://HOST:PORT/PREFIX")


def durable_place(value: str) -> str:
    """Parse where a journal is that outlives its coordinator: `sqlite:PATH` or `etcd://…`."""
    if value == "memory":
        raise BadValue("a journal in memory is gone with its coordinator: there is nothing to read")
    try:
        return journal_place(value)
    except BadValue:
        if "/" in value and ":" not in value:
            raise  # it says what is missing
        raise BadValue(f"{value!r} is not sqlite:PATH or etcd://HOST:PORT/PREFIX") from None


def node_range(value: str) -> tuple[int, int]:
    """Parse `N` or `MIN:MAX`."""
    low, colon, high = value.partition(":")
    try:
        minimum = int(low)
        maximum = int(high) if colon else minimum
    except ValueError:
        raise BadValue(f"{value!r} is not N or MIN:MAX") from None
    if not 1 <= minimum <= maximum:
        raise BadValue(f"{value!r} does not satisfy 1 <= MIN <= MAX")
    return minimum, maximum


def own_address(value: str) -> str:
    """Parse `host` or `host:port` of this host, as others reach it."""
    parsed = parse_endpoint(value)
    if parsed is None:
        raise BadValue(f"{value!r} is not HOST or HOST:PORT")
    if is_wildcard(first_host(parsed)):
        raise BadValue(f"{value!r} is every address of a host; others can connect only to one")
    return value


def endpoints(value: str) -> str:
    """Parse `host[:port]`, or several of them with commas in between.

    An IPv6 address with a port needs brackets.
    """
    try:
        return parse_endpoints(value)
    except ValueError as error:
        raise BadValue(str(error)) from None


def label(value: str) -> tuple[str, str]:
    """Parse `key=value`."""
    key, equals, word = text(value).partition("=")
    if not key or not equals:
        raise BadValue(f"{value!r} is not KEY=VALUE")
    return key, word
