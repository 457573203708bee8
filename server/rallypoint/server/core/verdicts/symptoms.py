"""Finds from the end of a worker whether it failed by its own error or lost a peer.

When a worker fails, its peers fail too: their connections break and their collectives time out. A
fast peer can even be reported before the worker that it lost. The last output of a worker is the
best evidence for which of the two it is.

Only two kinds of text make a victim: what torch, gloo and NCCL write when a peer is gone, and
Python's bare errors of a broken connection. `error_texts` lists both. The search looks at the error
that ended the worker and nowhere else. So these do not make a victim: an error that mentions a
connection, a reset that the worker survived, the output of threads that end after the error. In a
chain of errors the first one counts: a failed cleanup does not hide the original error.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from functools import cache, lru_cache

from rallypoint.base.tracebacks import PrintedError, find_last_chain, split_lines
from rallypoint.server.core.model.worker import Symptom, WorkerExit
from rallypoint.server.core.verdicts.error_texts import (
    BROKEN_CONNECTION,
    COLLECTIVE_TIMEOUT,
    CUDA_FRAME,
    LOST_PEER,
    OWN_CAUSE,
    SHARED_BEGINS,
    WATCHDOG_FRAME,
)
from rallypoint.server.core.verdicts.last_words import find_announcement, find_last_output

LINES_MAX = 2_048
"""Lines that the search reads of the texts of one worker: half from the begin, half from the end.
A traceback of the most characters has a few hundred."""
LAST_WORDS_LINES = 20
"""The worker survived an error that is followed by more lines than this, without stacks."""
BODY_LINES = 8
"""Lines of an NCCL error that the search reads: the cause is below the headline."""
BODY_CHARS = 2_048
"""Characters that the search reads. In the worst case its time is this times the line length."""
OUTSIDE_SIGNALS = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGTERM,
    }
)
"""Signals that another process sends. They do not show why."""
SHELL_SIGNAL_BASE = 128
"""A shell reports a signal as this plus its number."""
SIGNAL_MAX = 64

_WHAT = "what():"
"""C++ prints the text of an uncaught exception after it."""


@cache  # compiled at the first failure, not before the first worker starts
def _compile(texts: tuple[str, ...]) -> re.Pattern[str]:
    patterns = list(texts)
    for begin in SHARED_BEGINS:
        ends = [one.removeprefix(begin) for one in patterns if one.startswith(begin)]
        if ends:
            patterns = [one for one in patterns if not one.startswith(begin)]
            patterns.append(f"{begin}(?:{'|'.join(ends)})")
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), re.MULTILINE)


def classify(exit: WorkerExit) -> Symptom:
    """Return whether the worker failed by its own error, as far as its end shows."""
    if exit.oom_killed:
        return Symptom.PRIMARY
    symptom = _classify_last_words(exit)
    if symptom is Symptom.VICTIM:
        return Symptom.VICTIM
    number = exit.signal
    if exit.exit_code is not None and 0 < exit.exit_code - SHELL_SIGNAL_BASE <= SIGNAL_MAX:
        number = exit.exit_code - SHELL_SIGNAL_BASE
    if number == signal.SIGPIPE:
        return Symptom.VICTIM
    if number is None or number in OUTSIDE_SIGNALS:
        return symptom
    if number == signal.SIGABRT and exit.error is None and not exit.stderr_tail.strip():
        return symptom  # a watchdog that gives up on peers aborts too
    return Symptom.PRIMARY


def is_collective_timeout(exit: WorkerExit) -> bool:
    """Return whether a worker is a victim because a peer did not come to a collective in time."""
    if classify(exit) is not Symptom.VICTIM:
        return False
    text = exit.stderr_tail if exit.error is None else exit.error.traceback
    lines, chain = _read(text)
    if chain:
        body = _read_body(lines, chain[0])
    elif exit.error is not None:
        body = exit.error.message.strip()[:BODY_CHARS]
    else:
        if _compile(WATCHDOG_FRAME).search(text):
            return True
        body = text.rpartition(_WHAT)[2][:BODY_CHARS]
    return _compile(COLLECTIVE_TIMEOUT).search(body) is not None


def find_error(exit: WorkerExit) -> str:
    """Return the line that says what went wrong, or an empty string; see `last_words`."""
    if exit.error is not None:
        return _last_line(exit.error.message.splitlines())
    lines, chain = _read(exit.stderr_tail)
    if chain and not _is_survived(lines[chain[-1].end :]):
        return chain[-1].headline
    _, what, abort = exit.stderr_tail.rpartition(_WHAT)
    if what:
        return abort.strip().partition("\n")[0].strip()
    at = find_announcement(lines)
    return "" if at is None or _is_survived(lines[at + 1 :]) else lines[at].strip()


def find_last_words(exit: WorkerExit) -> str:
    """Return the last line of a worker that ended with a code and shows no error, or ""."""
    if exit.exit_code is None or find_error(exit):
        return ""
    return find_last_output(_read(exit.stderr_tail)[0])


def find_stack(exit: WorkerExit) -> str:
    """Return the last error with its stack, without torch's rank prefix; "" if there is none."""
    lines, chain = _read(exit.stderr_tail if exit.error is None else exit.error.traceback)
    return "\n".join(lines[chain[-1].begin : chain[-1].end]) if chain else ""


@lru_cache(maxsize=1)  # the verdict, the error and the stack of a worker are found one by one
def _read(text: str) -> tuple[Sequence[str], Sequence[PrintedError]]:
    """Return the lines of a text, and the last chain of errors in them."""
    lines = split_lines(text)
    if len(lines) > LINES_MAX:
        lines = lines[: LINES_MAX // 2] + lines[-LINES_MAX // 2 :]
    return lines, find_last_chain(lines)


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _classify_last_words(exit: WorkerExit) -> Symptom:
    """Classify the recorded error or the output, whatever ended the worker."""
    text = exit.stderr_tail if exit.error is None else exit.error.traceback
    lines, chain = _read(text)
    if exit.error is not None:
        message = exit.error.message.strip()[:BODY_CHARS]
        if not message and not text:
            return Symptom.UNKNOWN  # what it wrote was not kept
        return _classify_chain(lines, chain) if chain else _classify_errors(message, message)
    if not chain:
        return _classify_abort(text)
    if _is_survived(lines[chain[-1].end :]):
        return Symptom.UNKNOWN
    return _classify_chain(lines, chain)


def _classify_chain(lines: Sequence[str], chain: Sequence[PrintedError]) -> Symptom:
    return _classify_errors(_read_body(lines, chain[0]), _read_body(lines, chain[-1]))


def _read_body(lines: Sequence[str], error: PrintedError) -> str:
    """Return the headline of an error; of NCCL's errors also the lines below it.

    Lines below other errors are later output of other code.
    """
    at = error.end - 1
    end = at + BODY_LINES if "DistBackendError: " in error.headline else error.end
    return "\n".join(lines[at:end])[:BODY_CHARS]


def _classify_errors(first: str, last: str) -> Symptom:
    """Classify the bodies of the first and the last error of a chain."""
    if _names_lost_peer(first):
        return Symptom.VICTIM
    # A broken connection that led to another error may have been to a data server or a tracker.
    # A broken connection after another error was found by the cleanup.
    if _is_broken_connection(first) and (_is_broken_connection(last) or _names_lost_peer(last)):
        return Symptom.VICTIM
    return Symptom.PRIMARY


def _classify_abort(text: str) -> Symptom:
    """Classify output without a traceback: C++ may have ended the process."""
    if _compile(OWN_CAUSE).search(text) or _compile(CUDA_FRAME).search(text):
        return Symptom.UNKNOWN
    _, what, abort = text.rpartition(_WHAT)
    if (what and _names_lost_peer(abort[:BODY_CHARS])) or _compile(WATCHDOG_FRAME).search(text):
        return Symptom.VICTIM
    return Symptom.UNKNOWN


def _names_lost_peer(body: str) -> bool:
    return _compile(LOST_PEER).search(body) is not None and _compile(OWN_CAUSE).search(body) is None


def _is_broken_connection(body: str) -> bool:
    return _compile(BROKEN_CONNECTION).match(body.partition("\n")[0]) is not None


def _is_survived(after: Sequence[str]) -> bool:
    """Return whether too many lines follow an error for it to have ended the worker."""
    words = [line for line in after if line and not line[0].isspace()]
    return sum(not line.startswith("frame #") for line in words) > LAST_WORDS_LINES
