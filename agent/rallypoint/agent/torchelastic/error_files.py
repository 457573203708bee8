"""The errors that workers recorded: in their error files, or last on standard error.

A worker's program writes its error file, so the content may be anything. The agent uses the valid
parts, and no content ends or blocks the agent.

Source: the forms that torch 2.13 writes and accepts (`torch.distributed.elastic`'s `ErrorHandler`
and `ProcessFailure`).
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from rallypoint.agent.core.held_round import ErrorRecord
from rallypoint.base.limits import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX, UNIX_MS_MAX
from rallypoint.base.tracebacks import HEADER, find_errors, is_header, split_lines

ERROR_FILE_BYTES_MAX = 1_048_576
MESSAGE_LINES_MAX = 8
"""Lines of an uncaught error's message, indented ones not counted. When more lines follow a
traceback, the worker may have survived it."""


def find_uncaught(tail: str) -> ErrorRecord | None:
    """Return the error that ended the main thread, if the output ends with one.

    After such an error the interpreter may take seconds to exit, for example to close connections.
    A signal during that time is not the cause of the exit.
    """
    lines = split_lines(tail)
    errors = list(find_errors(lines))
    if not errors or errors[-1].is_elsewhere or errors[-1].is_cut:
        return None
    error = errors[-1]
    message = lines[error.end - 1 :]
    if any(map(is_header, message)):
        return None  # the stack of another error is still being printed
    if sum(bool(line) and not line[0].isspace() for line in message) > MESSAGE_LINES_MAX:
        return None
    stack = "\n".join((HEADER, *lines[error.begin + 1 : error.end]))
    return ErrorRecord("\n".join(message).rstrip()[:MESSAGE_CHARS_MAX], stack, None)


FileStamp = tuple[int, int, int]
"""The inode of a file, when it was last written, in ns, and its size in bytes."""


def read_stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file, which changes with its content; None when it cannot be read."""
    try:
        return _to_stamp(os.stat(path))
    except OSError:
        return None


def _to_stamp(facts: os.stat_result) -> FileStamp:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def read_error_file(
    path: Path, seen_s: float, *, age_ms_max: int | None = None, stale: FileStamp | None = None
) -> ErrorRecord | None:
    """Return the error that a worker recorded with `@record`, in any form that torch accepts.

    Args:
        path: the worker's TORCHELASTIC_ERROR_FILE.
        seen_s: Unix time when the worker's end was seen, or now while it runs, in seconds.
        age_ms_max: the file's age at that time is at most this; None: the file's own time counts.
        stale: the file that an earlier worker left there; None: there was none.

    Returns: The record; None when it is missing, incomplete or stale, because standard error is
        more useful then.
    """
    try:
        data, facts = _read(path)
    except OSError:
        return None
    if _to_stamp(facts) == stale:
        return None
    written_s = facts.st_mtime
    # The record's time stamp has whole seconds: too coarse to compare with a stop.
    age_ms = max(0, int((seen_s - written_s) * 1000))
    age_ms = age_ms if age_ms_max is None else min(age_ms, age_ms_max)
    if len(data) > ERROR_FILE_BYTES_MAX:
        text = f"the error file is larger than {ERROR_FILE_BYTES_MAX} bytes"
        return ErrorRecord(text, "", age_ms, int(written_s))
    return _to_record(_parse(data), age_ms)


def read_json(path: Path, message: str | None) -> object | None:
    """Return the content of an error file.

    Args:
        path: of the file.
        message: the error that the file held when it was read for the report; None: it held none.

    Returns: None when the file is no JSON, or too large, or holds another error now.
    """
    try:
        data, _ = _read(path)
    except OSError:
        return None
    content = _parse(data)
    record = _to_record(content, 0)
    is_other = record is not None and message is not None and record.message != message
    return None if is_other else content


def _parse(data: bytes) -> object | None:
    try:
        content: object = json.loads(data.decode("utf-8-sig", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return content


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    """Return the beginning of a file, and the facts about it.

    Raises:
        OSError: there is no such file, or it is not a regular one; a pipe would block the agent.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(ERROR_FILE_BYTES_MAX + 1), facts


def _to_record(content: object, age_ms: int) -> ErrorRecord | None:
    try:
        return _interpret(content, age_ms)
    except RecursionError:  # JSON that can be read may be too deep to write
        return None


def _interpret(content: object, age_ms: int) -> ErrorRecord | None:
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
    """Return a JSON value as text for the wire, which cannot carry half a surrogate pair."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text.encode(errors="replace").decode()


def _to_seconds(value: object) -> int | None:
    """Return a time stamp, which torch writes as a number in a string, as whole seconds."""
    if not isinstance(value, (str, int, float)):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return int(seconds) if math.isfinite(seconds) and 0 < seconds <= UNIX_MS_MAX // 1000 else None
