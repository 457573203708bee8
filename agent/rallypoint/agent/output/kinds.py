"""What kind of file a stream of a worker is. An interpreter looks at it once, when it starts."""

from __future__ import annotations

import os
import stat
from enum import Enum

from msgspec import Struct

from rallypoint.agent.output.destinations import Route
from rallypoint.agent.output.streams import open_terminal
from rallypoint.base.console import Console

NULL = os.stat(os.devnull).st_rdev


class Kind(Enum):
    """A kind of file; the value is for people."""

    PIPE = "a pipe"
    FILE = "a file"
    TERMINAL = "a terminal"
    NULL = "/dev/null"
    OTHER = "neither a file, a pipe nor a terminal"


class Kinds(Struct, frozen=True):
    """The kinds of a worker's standard output and standard error."""

    out: Kind
    err: Kind

    def find_terminals(self) -> tuple[bool, bool]:
        """Return which are terminals: what an import may ask for."""
        return self.out is Kind.TERMINAL, self.err is Kind.TERMINAL


def kind_of(fd: int) -> Kind:
    """Return the kind of an open file."""
    status = os.fstat(fd)
    if stat.S_ISFIFO(status.st_mode):
        return Kind.PIPE
    if stat.S_ISREG(status.st_mode):
        return Kind.FILE
    if os.isatty(fd):
        return Kind.TERMINAL
    return Kind.NULL if status.st_rdev == NULL else Kind.OTHER


def kinds_of(out: Route, err: Route, out_console: Console, err_console: Console) -> Kinds:
    """Return the kinds of streams with these routes."""
    if out == Route():
        return Kinds(kind_of(out_console.fd), _kind_of_stream(err, err_console))
    if out == Route(is_shown=False):
        return Kinds(Kind.NULL, _kind_of_stream(err, err_console))
    return Kinds(_kind_of_stream(out, out_console), _kind_of_stream(err, err_console))


def _kind_of_stream(route: Route, console: Console) -> Kind:
    if route.file and not route.is_shown:
        return Kind.FILE
    is_terminal = route == Route() and kind_of(console.fd) is Kind.TERMINAL
    return Kind.TERMINAL if is_terminal else Kind.PIPE


def open_like(kind: Kind, terminal_fd: int) -> tuple[int, int]:
    """Return a file of this kind, and its other end; -1 if it has none.

    Args:
        kind: of the file. What is OTHER cannot be made: a pipe stands for it.
        terminal_fd: the terminal to take the settings of.

    Raises:
        OSError: it cannot be opened.
    """
    match kind:
        case Kind.PIPE | Kind.OTHER:
            reader, writer = os.pipe()
            return writer, reader
        case Kind.TERMINAL:
            reader, writer = open_terminal(terminal_fd)
            return writer, reader
        case Kind.FILE:
            return os.memfd_create("rallypoint-preload"), -1
        case Kind.NULL:
            return os.open(os.devnull, os.O_WRONLY), -1
