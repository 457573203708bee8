"""What a worker process leaves behind when it ends: an error record, files, its last output."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from rallypoint.agent.core.held_round import ErrorRecord

SIGKILL = 9
RECORDED_MS_MAX = 3_000
"""How long a process may live on after it has recorded its error."""
CUT_OFF = """Traceback (most recent call last):
  File "train.py", line 7, in <module>
ConnectionResetError: [Errno 104] Connection reset by peer
"""
"""The last words of a worker that was cut off from one that died."""
_ERRORS = (
    ("ValueError: loss is NaN", 'Traceback:\n  File "train.py", line 9\nValueError: loss is NaN\n'),
    ("RuntimeError: CUDA error: out of memory", ""),
    ("KeyError: 'größe'", "Traceback:\n  File \"train.py\", line 12\nKeyError: 'größe'\n"),
    ("ConnectionResetError: [Errno 104] Connection reset by peer", CUT_OFF),
)


@dataclass(frozen=True, slots=True)
class LastWords:
    """Everything but the exit code and the signal."""

    stderr_tail: str = ""
    error: ErrorRecord | None = None
    failed_ms: int | None = None
    """Unix time."""
    error_file: str = ""
    stderr_file: str = ""
    oom_killed: bool = False


def draw_record(rng: Random, unix_ms: int) -> LastWords:
    """Return the error that a process records now and lives on."""
    message, traceback = rng.choice(_ERRORS)
    error = ErrorRecord(message, traceback, 0)
    stderr_file = rng.choice(("", "/logs/0/stderr.log"))
    return LastWords("", error, unix_ms, "/logs/0/error.json", stderr_file)


def draw_last_words(
    rng: Random, percent: int, signal: int | None, words: str, unix_ms: int
) -> LastWords:
    """Return what a process leaves that fails now.

    Args:
        rng: of these words alone.
        percent: of the processes that leave a record.
        signal: that ended it; None for an exit code.
        words: its last output.
        unix_ms: now.
    """
    if rng.random() * 100 >= percent:
        return LastWords(words, failed_ms=rng.choice((None, unix_ms)))
    oom_killed = signal == SIGKILL and rng.random() < 0.5
    stderr_file = rng.choice(("", "/logs/0/stderr.log"))
    if signal is not None:
        return LastWords(words, None, unix_ms, "", stderr_file, oom_killed)
    message, traceback = _ERRORS[-1] if words else rng.choice(_ERRORS)
    before_ms = rng.choice((None, 0, rng.randint(0, RECORDED_MS_MAX)))
    error = ErrorRecord(message, traceback, before_ms)
    failed_ms = max(0, unix_ms - (before_ms or 0))
    return LastWords(words, error, failed_ms, "/logs/0/error.json", stderr_file)
