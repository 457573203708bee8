"""The commands that messages recommend, so that they can be pasted.

What the user has typed to reach the coordinator belongs to each of them; variables and contexts
count again by themselves. In the sources such a command begins with `{rallypoint}`, and `recommend`
alone fills that in: one that does not pass through it shows the braces, and fails a test.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rallypoint.cli.operator.common import AccessOptions, Common

PROGRAM = "rallypoint"
_PLACE = re.compile(r"\{(\w+)\}")
_program = ContextVar("program", default=PROGRAM)


@contextmanager
def reaching_as(common: Common) -> Iterator[None]:
    """Let the commands that are recommended meanwhile reach the coordinator like this one."""
    token = _program.set(shlex.join([PROGRAM, *_find_given(common)]))
    try:
        yield
    finally:
        _program.reset(token)


def recommend(text: str, **names: str) -> str:
    """Return a text with the commands in it as a user has to type them.

    Args:
        text: of this program, with `{rallypoint}` where a command begins.
        names: jobs and the like, by their places in the text: `job=` is for `{job}`. They are
            quoted where a shell needs that; of one that is empty or left out, the text has JOB.
    """

    def fill(match: re.Match[str]) -> str:
        place = match[1]
        if place == PROGRAM:
            return _program.get()
        return shlex.quote(names[place]) if names.get(place) else place.upper()

    return _PLACE.sub(fill, text)


def _find_given(common: Common) -> Iterator[str]:
    """Yield the options with which the user has named a coordinator, and how to reach it."""
    for name in ("tls", "coordinator", "context", *AccessOptions.__struct_fields__[1:]):
        flag = "-c" if name == "coordinator" else f"--{name.replace('_', '-')}"
        if value := getattr(common, name):
            yield from (flag,) if value is True else (flag, value)
