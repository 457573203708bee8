"""Finds in the last output of a worker what announces its end, and what is only its last output.

A worker that another process killed had no time to say anything. What it printed last is then a
progress bar, a log line or a warning of its start, and says nothing about the cause. So only a text
that announces an end counts as the cause. The other last line is named as what it is, and only
after an exit code, which the worker chose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_ANNOUNCEMENT = (
    r"Fatal Python error: "  # CPython, also its faulthandler
    r"|Assertion [`'\"].{0,200}' failed"  # glibc
    r"|^terminate called "  # C++, without what()
    r"|^(?:free|malloc|realloc|calloc|munmap_chunk|malloc_consolidate)\(\): "  # glibc's heap
    r"|^(?:double free or corruption|corrupted (?:size|double-linked list))"
    r"|^\*\*\* .{1,100} detected \*\*\*"  # glibc's guard of stacks and buffers
    r"|ERROR: \w{1,40}Sanitizer: "
    r"|^(?:\[rank\d+\]:)?\[?F\d{4} \d\d:\d\d:\d\d"  # glog's level FATAL, as in torch
)
_LEVEL = r"(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING)"
_NOISE = (
    rf"(?:^|[\s\[(|<]){_LEVEL}(?:$|[\s\])|>:,-])"  # a log line: spaces or brackets around its level
    r"|\[(?:debug|info|warning) {0,8}\]|^[Ww]arning: "
    r"|^(?:\[rank\d+\]:)?\[?[IW]\d{4} \d\d:\d\d:\d\d"  # glog's levels
    r"|\d%\|.*\||\d(?:it)? \[\d\d:\d\d"  # tqdm
    r"|━{3}"  # rich
)
_WARNING = r"^\S.{0,500}:\d+: \w*Warning: "
LINES_MAX = 256
"""Lines that the search reads, from the end: a stack of all threads fits."""
LINE_CHARS = 1_024
"""Characters of a line that the search reads, from its begin."""


def find_announcement(lines: Sequence[str]) -> int | None:
    """Return the index of the last line that announces the end of the process, or None."""
    found = (
        at
        for at in _from_the_end(lines)
        if lines[at] and re.search(_ANNOUNCEMENT, lines[at][:LINE_CHARS])
    )
    return next(found, None)


def find_last_output(lines: Sequence[str]) -> str:
    """Return the last line that is no warning, progress bar or log line below ERROR, or ""."""
    for at in _from_the_end(lines):
        line = lines[at][:LINE_CHARS]
        if not line.strip() or re.search(_NOISE, line) or re.search(_WARNING, line):
            continue
        before = lines[at - 1][:LINE_CHARS] if at else ""
        if line.startswith("  ") and re.search(_WARNING, before):
            continue  # Python prints the statement below its warning
        return lines[at].strip()
    return ""


def _from_the_end(lines: Sequence[str]) -> range:
    return range(len(lines) - 1, max(-1, len(lines) - 1 - LINES_MAX), -1)
