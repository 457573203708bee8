"""The errors that workers wrote down: into their error files, or last on standard error.

An error file is the program's, not ours: whatever stands there is taken as far as it makes sense,
and never ends or blocks the agent.

Source: the forms that torch 2.13 writes and accepts (`torch.distributed.elastic`'s `ErrorHandler`
and `ProcessFailure`).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.core.model import ErrorRecord

ERROR_FILE_BYTES_MAX = 1_048_576
MESSAGE_CHARS_MAX = 4_096
TRACEBACK_CHARS_MAX = 16_384
MESSAGE_LINES_MAX = 8
"""Lines of an uncaught error's message; of what says more after its traceback we do not know."""
TIME_S_MAX = 32_503_680_000
"""The year 3000: what is later is no time, and calendars end in the year 9999."""

_TRACEBACK = "Traceback (most recent call last):"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ", re.MULTILINE)
_ELSEWHERE = re.compile(r"Exception in thread |Exception ignored in|Process \S+-\d+:$")
"""What announces the error of a thread, a destructor or a child."""


def find_uncaught(tail: str) -> ErrorRecord | None:
    """Return the error with which the main thread has ended, if that is the last that it said.

    What the interpreter then still does, such as to close connections, can take seconds, in which
    the worker is as good as dead and may be signalled.
    """
    _, begin, rest = tail.rpartition(_TRACEBACK)
    before = tail[: len(tail) - len(begin) - len(rest)]
    lines = _RANK_PREFIX.sub("", rest).splitlines()
    last = next((at for at, line in enumerate(lines) if line and not line[0].isspace()), None)
    if not begin or last is None or len(lines) - last > MESSAGE_LINES_MAX:
        return None
    if _ELSEWHERE.search(before.rstrip().rpartition("\n")[2]):
        return None
    stack = "\n".join((_TRACEBACK, *lines[1 : last + 1]))
    return ErrorRecord("\n".join(lines[last:])[:MESSAGE_CHARS_MAX], stack, None)


def read_error_file(path: Path, ended_s: float) -> ErrorRecord | None:
    """Return what a worker wrote down with `@record`, in any of its accepted forms.

    Args:
        path: the worker's TORCHELASTIC_ERROR_FILE.
        ended_s: Unix time when the worker's end was seen, in seconds.

    Returns:
        The record; None when there is none, or nothing that is whole: the worker's standard error
        then says more.
    """
    try:
        data, written_s = _read(path)
    except OSError:
        return None
    # The record's own time stamp counts whole seconds: too coarse to be compared with a stop.
    age_ms = max(0, int((ended_s - written_s) * 1000))
    if len(data) > ERROR_FILE_BYTES_MAX:
        text = f"the error file is larger than {ERROR_FILE_BYTES_MAX} bytes"
        return ErrorRecord(text, "", age_ms, int(written_s))
    return _to_record(_parse(data), age_ms)


def read_json(path: Path) -> object | None:
    """Return all that stands in an error file; None when that is no JSON, or too much."""
    try:
        data, _ = _read(path)
    except OSError:
        return None
    return _parse(data)


def _parse(data: bytes) -> object | None:
    try:
        content: object = json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return content


def _read(path: Path) -> tuple[bytes, float]:
    """Return the beginning of a file and the Unix time in seconds when it was last written.

    Raises:
        OSError: there is no such file, or it is no regular one: a pipe would block the agent.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(ERROR_FILE_BYTES_MAX + 1), facts.st_mtime


def _to_record(content: object, age_ms: int) -> ErrorRecord | None:
    if not content:
        return None
    message = content.get("message") if isinstance(content, Mapping) else None
    if message is None:
        return ErrorRecord(_text(content)[:MESSAGE_CHARS_MAX], "", age_ms)
    extra = message.get("extraInfo") if isinstance(message, Mapping) else content
    extra = extra if isinstance(extra, Mapping) else {}
    text = message.get("message") if isinstance(message, Mapping) else message
    stack = extra.get("py_callstack")
    stack = _text(stack).rstrip() if isinstance(stack, str) else ""
    return ErrorRecord(
        message=_text(text or stack.rpartition("\n")[2])[:MESSAGE_CHARS_MAX],
        traceback=stack[-TRACEBACK_CHARS_MAX:],
        before_exit_ms=age_ms,
        time_s=_to_seconds(extra.get("timestamp")),
    )


def _text(value: object) -> str:
    """Return a value of JSON as text that the wire can carry: half a surrogate pair cannot be."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _to_seconds(value: object) -> int | None:
    """Return a time stamp, which torch writes as the text of a number, as whole seconds."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return int(seconds) if math.isfinite(seconds) and 0 < seconds <= TIME_S_MAX else None
