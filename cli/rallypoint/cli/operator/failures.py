"""How a command fails: one line for a person, and an exit code for a script."""

from __future__ import annotations

from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_USAGE
from rallypoint.client.errors import InvalidRequest, NotAllowed, RallypointError, Unavailable

EXIT_NOT_FOUND = 3
"""There is no such job, node, key or context."""
EXIT_TIMED_OUT = 4
"""What the command waited for did not happen in time."""
EXIT_NOT_REACHED = 69
"""No coordinator answered; EX_UNAVAILABLE of sysexits.h."""
EXIT_NOT_ALLOWED = 77
"""The coordinator does not know the caller, or the role forbids it; EX_NOPERM of sysexits.h."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells report it."""

EXIT_CODES = (
    ("0", "done"),
    (
        str(EXIT_FAILED),
        "the coordinator refused the command, it failed, or --run or --round is not the latest",
    ),
    (str(EXIT_USAGE), "bad usage"),
    (str(EXIT_NOT_FOUND), "there is no such job, node, key or context"),
    (str(EXIT_TIMED_OUT), "what the command waited for did not happen in time"),
    (str(EXIT_NOT_REACHED), "no coordinator answered"),
    (str(EXIT_NOT_ALLOWED), "the coordinator does not know the caller, or the role forbids it"),
    (str(EXIT_INTERRUPTED), "ended by Ctrl-C"),
)
"""Each code and its meaning, for the documentation."""


class CommandFailed(Exception):
    """A command cannot do what it was asked for. The text says what to do next."""

    def __init__(self, text: str, code: int = EXIT_FAILED) -> None:
        """Keep the line for people, and the exit code."""
        super().__init__(text)
        self.code = code


class TimedOut(CommandFailed):
    """What a command waited for did not happen in time."""

    def __init__(self, text: str) -> None:
        """Keep the line for people."""
        super().__init__(text, EXIT_TIMED_OUT)


class NotFound(CommandFailed):
    """There is no such thing."""

    def __init__(self, text: str) -> None:
        """Keep the line for people."""
        super().__init__(text, EXIT_NOT_FOUND)


class NotReached(CommandFailed):
    """No coordinator answered."""

    def __init__(self, problem: str, advice: str = "") -> None:
        """Keep the line for people: what is wrong, and what to do."""
        super().__init__(f"{problem}; {advice}" if advice else problem, EXIT_NOT_REACHED)
        self.problem = problem


def exit_code_of(error: RallypointError) -> int:
    """Return the exit code after a call that failed."""
    if isinstance(error, Unavailable):
        return EXIT_NOT_REACHED
    if isinstance(error, NotAllowed):
        return EXIT_NOT_ALLOWED
    if isinstance(error, InvalidRequest):
        return EXIT_USAGE
    return EXIT_NOT_FOUND if error.status == "NOT_FOUND" else EXIT_FAILED
