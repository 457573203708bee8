"""What a worker left behind that says why it ended: its error file, or the end of its output."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.core.model import ErrorRecord

ERROR_FILE_BYTES_MAX = 1_048_576
MESSAGE_CHARS_MAX = 4_096
TRACEBACK_CHARS_MAX = 16_384
MESSAGE_LINES_MAX = 8
"""Lines of an uncaught error's message; of what says more after its traceback we do not know."""

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
    """Return what a worker wrote down with `@record`, in any of its accepted forms, or None.

    Args:
        path: the worker's TORCHELASTIC_ERROR_FILE.
        ended_s: Unix time when the worker's end was seen, in seconds.
    """
    try:
        stat = path.stat()
        # The record's own time stamp counts whole seconds: too coarse to be compared with a stop.
        age_ms = max(0, int((ended_s - stat.st_mtime) * 1000))
        if stat.st_size > ERROR_FILE_BYTES_MAX:
            text = f"the error file is larger than {ERROR_FILE_BYTES_MAX} bytes"
            return ErrorRecord(text, "", age_ms)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    message = content.get("message") if isinstance(content, Mapping) else None
    if message is None:
        return None
    if isinstance(message, str):
        return ErrorRecord(message[:MESSAGE_CHARS_MAX], "", age_ms)
    extra = message.get("extraInfo") if isinstance(message, Mapping) else None
    extra = extra if isinstance(extra, Mapping) else {}
    text = message.get("message", "") if isinstance(message, Mapping) else message
    traceback = extra.get("py_callstack")
    return ErrorRecord(
        message=str(text)[:MESSAGE_CHARS_MAX],
        traceback=traceback[-TRACEBACK_CHARS_MAX:] if isinstance(traceback, str) else "",
        before_exit_ms=age_ms,
    )
