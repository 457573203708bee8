"""The stacks that `faulthandler` writes, as threads and frames. Pure.

It lists threads from the newest to the oldest, so the main thread is the last one, in all versions
of CPython from 3.8 on; it need not be the "Current thread", which runs the handler. After 100
threads the list stops, without the main thread. An answer to an earlier signal may come late,
before the one that is awaited: a thread that occurs again begins the next one.

A worker may write anything into the file: what does not look like a stack is left out.
"""

from __future__ import annotations

import re

from rallypoint.v1 import evidence_pb2

FRAMES_MAX = 100
"""Of a thread; what faulthandler writes itself."""
THREADS_MAX = 64
FUNCTION_CHARS_MAX = 256
FILE_CHARS_MAX = 512
LINE_MAX = (1 << 32) - 1
_CUT = "..."
"""The line that stands for the threads that are left out."""
_THREAD = re.compile(
    r"(?:Current thread|Thread) (0x[0-9a-fA-F]{1,16}) (?:\[.*\] )?\(most recent call first\):"
)
_FRAME = re.compile(r'  File (?:"(.*)"|\?\?\?), line (\d{1,10}|\?\?\?) in (.*)')
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_CHARACTER_MAX = 0x10FFFF


def parse_stacks(text: str) -> list[evidence_pb2.ThreadStack]:
    """Return the threads with Python code, the main thread first if it is among them."""
    threads: list[evidence_pb2.ThreadStack] = []
    known: set[str] = set()
    is_cut = False
    for line in text.split("\n"):
        header = _THREAD.fullmatch(line)
        if header is not None:
            if header[1] in known:
                threads, known, is_cut = [], set(), False
            known.add(header[1])
            threads.append(evidence_pb2.ThreadStack())
        elif line == _CUT:
            is_cut = True
        elif threads and (found := _FRAME.fullmatch(line)) is not None:
            if len(threads[-1].frames) < FRAMES_MAX:
                threads[-1].frames.append(_frame(found))
    mains = [] if is_cut or not threads else [threads.pop()]
    for main in mains:
        main.is_main = True
    others = [thread for thread in threads if thread.frames]
    return [*mains, *others][:THREADS_MAX]


def _frame(found: re.Match[str]) -> evidence_pb2.Frame:
    file, line, function = found.groups()
    number = 0 if line == "???" else min(int(line), LINE_MAX)
    return evidence_pb2.Frame(
        function=_decode(function)[:FUNCTION_CHARS_MAX],
        file=_decode(file or "")[-FILE_CHARS_MAX:],
        line=number,
    )


def _decode(text: str) -> str:
    """Return a text as the interpreter has it: faulthandler escapes what is not ASCII."""
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    number = int(found[1] or found[2] or found[3], 16)
    is_surrogate = 0xD800 <= number <= 0xDFFF  # a byte of a path that is not UTF-8
    return "\N{REPLACEMENT CHARACTER}" if is_surrogate or number > _CHARACTER_MAX else chr(number)
