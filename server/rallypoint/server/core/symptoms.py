"""What the end of a worker says of its cause: its own, or the failure of another worker.

A worker that fails takes its peers with it: their connections break, their collectives time out. A
peer that is quick can even be reported before the worker that it is a victim of. What it said last
tells the two apart, as far as anything can.

Only texts that torch, gloo and NCCL write for a peer that is gone count as a victim's, and the bare
errors of Python for a broken connection. They are looked for in the error that ended the worker and
nowhere else, so that an error which only mentions a connection, a reset that was survived earlier,
or the noise of threads that end after it make nobody a victim. Of errors that follow from each
other the first counts: a failed cleanup does not hide what it was to clean up after.

Sources: what torch 2.13 with gloo prints when peers are killed, hang or raise; the texts in its
libraries; reports of NCCL's errors in the issues of pytorch and nccl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rallypoint.server.core.model import Symptom, WorkerExit

LAST_WORDS_LINES = 20
"""An error followed by more lines than this, stacks not counted, was survived."""
BODY_LINES = 8
"""Lines of an error's message that are looked at: NCCL's has the cause in a later one."""
BODY_CHARS = 2_048
"""Characters of it: the search costs its length times that of a line, at worst."""
SIGNALS_OF_OTHERS = frozenset({1, 2, 3, 10, 12, 15})
"""HUP, INT, QUIT, USR1, USR2, TERM: somebody told the worker to end, nobody knows why."""
SIGABRT = 6
SIGPIPE = 13
SHELL_SIGNAL_BASE = 128
"""A shell tells of a signal by this plus its number."""
SIGNAL_MAX = 64

_RANK_PREFIX = re.compile(r"^\[rank\d+\]:(?: |$)", re.MULTILINE)
_BEGIN = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
_ELSEWHERE = re.compile(r"Exception in thread |Exception ignored in|Process \S+-\d+:$")
"""What announces the error of a thread, a destructor or a child."""
_WHAT = "what():"

_OF_ANOTHER = re.compile(
    r"""
      gloo/[^\s\]]{1,200}:\d+\]\ .{0,300}(?:Connection\ (?:closed|reset|refused)|Broken\ pipe
        |Read\ error|Write\ error|[Tt]imed\ out|[Tt]imeout)
    | Gloo\ connectFullMesh\ failed
    | monitoredBarrier\ in\ \d+\ ms | successfully\ reached\ monitoredBarrier,\ but
    | ^(?:torch\.distributed\.)?Dist(?:Network|Store)Error\b
    | ^(?:torch\.distributed\.)?DistBackendError\b(?s:.{0,1000})(?:got\ error:|[Tt]imeout
        |NCCL\ communicator\ was\ aborted)
    | ^RuntimeError:\ (?:Connection\ (?:reset|closed)\ by\ peer|Broken\ pipe|Socket\ Timeout
        |Stop_waiting\ response\ is\ expected)$
    | Failed\ to\ (?:recv|send),\ (?:got|sent)\ 0\ bytes
    | ncclRemoteError | remote\ process\ exited
    | watchdog\ thread\ terminated\ with\ exception
    | Watchdog\ caught\ collective\ operation\ timeout
    | tensorpipe/.{0,300}(?:eof|ECONNRESET|[Cc]onnection\ reset)
    """,
    re.VERBOSE | re.MULTILINE,
)
"""What the libraries say when another worker is gone, stuck or never came."""
_OF_ITS_OWN = re.compile(
    r"CUDA error|[Uu]nhandled cuda error|CUDA out of memory|ncclInvalid|"
    r"failed to (?:listen|bind)|EADDRINUSE|Address already in use",
)
"""What they say in the same places when the cause is here."""
_BROKEN_CONNECTION = re.compile(
    r"ConnectionResetError(?:: (?:\[Errno 104\] Connection reset by peer|Connection lost))?$"
    r"|ConnectionAbortedError(?:: \[Errno 103\] .*)?$"
    r"|BrokenPipeError(?:: \[Errno 32\] Broken pipe)?$"
    r"|EOFError$",
)
"""Errors of Python itself, exactly as the system call's failure reads: any peer may be meant."""
_WATCHDOG_STACK = re.compile(r"WorkNCCL::checkTimeout|Exception raised from checkTimeout")
_CUDA_STACK = re.compile(r"c10_cuda_check_implementation")


class _Error(NamedTuple):
    """An error that a text tells of."""

    headline: str
    body: str
    """The headline and the beginning of what follows it."""
    begin: int
    """Index of the line with which its stack begins."""
    end: int
    """Index of the line after the headline."""
    is_chained: bool = False
    """It came of the error before it."""


def classify(exit: WorkerExit) -> Symptom:
    """Return whether the worker failed by a cause of its own, as far as its end tells."""
    if exit.oom_killed:
        return Symptom.PRIMARY
    said = _classify_words(exit)
    if said is Symptom.VICTIM:
        return said
    signal = exit.signal
    if exit.exit_code is not None and 0 < exit.exit_code - SHELL_SIGNAL_BASE <= SIGNAL_MAX:
        signal = exit.exit_code - SHELL_SIGNAL_BASE
    if signal == SIGPIPE:
        return Symptom.VICTIM
    if signal is None or signal in SIGNALS_OF_OTHERS:
        return said
    if signal == SIGABRT and not find_error(exit):
        return said  # a watchdog that gives up on others aborts as well
    return Symptom.PRIMARY


def find_error(exit: WorkerExit) -> str:
    """Return the line that says what went wrong, or an empty string."""
    if exit.error is not None:
        lines = [line.strip() for line in exit.error.message.splitlines() if line.strip()]
        return lines[-1] if lines else ""
    lines = _plain_lines(exit.stderr_tail)
    chain = _last_chain(lines)
    if chain and not _is_survived(lines[chain[-1].end :]):
        return chain[-1].headline
    _, what, aborted = exit.stderr_tail.rpartition(_WHAT)
    if what:
        return aborted.strip().partition("\n")[0].strip()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def find_stack(exit: WorkerExit) -> str:
    """Return the last error with its stack, without torch's rank in front; "" if there is none."""
    text = exit.stderr_tail if exit.error is None else exit.error.traceback
    lines = _plain_lines(text)
    chain = _last_chain(lines)
    return "\n".join(lines[chain[-1].begin : chain[-1].end]) if chain else ""


def _classify_words(exit: WorkerExit) -> Symptom:
    if exit.error is not None:
        chain = _last_chain(_plain_lines(exit.error.traceback))
        message = exit.error.message.strip()
        said = _Error(message.partition("\n")[0], message[:BODY_CHARS], 0, 0)
        return _classify_chain(chain or [said])
    lines = _plain_lines(exit.stderr_tail)
    chain = _last_chain(lines)
    if chain:
        is_survived = _is_survived(lines[chain[-1].end :])
        return Symptom.UNKNOWN if is_survived else _classify_chain(chain)
    return _classify_abort(exit.stderr_tail)


def _classify_chain(chain: Sequence[_Error]) -> Symptom:
    first, last = chain[0], chain[-1]
    if _is_of_another(first.body):
        return Symptom.VICTIM
    # A broken connection that something else came of may have been to anybody: a data server, a
    # tracker. One that came of something else is what its cleanup met.
    are_broken = [_BROKEN_CONNECTION.match(error.headline) for error in (first, last)]
    if are_broken[0] and (are_broken[1] or _is_of_another(last.body)):
        return Symptom.VICTIM
    return Symptom.PRIMARY


def _classify_abort(text: str) -> Symptom:
    """Return what the end of a process without a traceback says: C++ that was not caught."""
    if _OF_ITS_OWN.search(text) or _CUDA_STACK.search(text):
        return Symptom.UNKNOWN
    what = text.rpartition(_WHAT)[2] if _WHAT in text else ""
    if (what and _is_of_another(what)) or _WATCHDOG_STACK.search(text):
        return Symptom.VICTIM
    return Symptom.UNKNOWN


def _is_of_another(body: str) -> bool:
    return _OF_ANOTHER.search(body) is not None and _OF_ITS_OWN.search(body) is None


def _is_survived(after: Sequence[str]) -> bool:
    """Return whether so much was said after an error that it did not end the worker."""
    said = [line for line in after if line and not line[0].isspace()]
    return sum(not line.startswith("frame #") for line in said) > LAST_WORDS_LINES


def _plain_lines(text: str) -> list[str]:
    """Return the lines of a text without the rank that torch writes in front of each."""
    return _RANK_PREFIX.sub("", text).splitlines()


def _last_chain(lines: Sequence[str]) -> list[_Error]:
    """Return the last error of the main thread, after those that it came of, cause first."""
    chain: list[_Error] = []
    for error in _find_errors(lines):
        if not error.is_chained:
            chain = []
        chain.append(error)
    return chain


def _find_errors(lines: Sequence[str]) -> Iterator[_Error]:
    """Return the errors that tracebacks tell of, in order; a first one may be cut at its head."""
    is_cut = next((line.startswith("  ") for line in lines if line), False)
    begin, is_chained, is_elsewhere = (0 if is_cut else None), False, False
    before = ""
    for at, line in enumerate(lines):
        if line == _BEGIN:
            begin = at
            is_chained = before.startswith(_CHAINED)
            is_elsewhere = (is_chained and is_elsewhere) or _ELSEWHERE.match(before) is not None
        elif begin is not None and line and not line[0].isspace():
            if not is_elsewhere:
                # What others print after an error is no part of it, so only this one has a body.
                end = at + BODY_LINES if "DistBackendError: " in line else at + 1
                body = "\n".join(lines[at:end])[:BODY_CHARS]
                yield _Error(line, body, begin, at + 1, is_chained)
            begin = None
        before = line or before
