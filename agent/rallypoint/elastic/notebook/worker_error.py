"""The error of a launch whose worker has failed, for a person who reads the end of a traceback."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping

from rallypoint.elastic.errors import ChildFailedError, ProcessFailure

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+), in ')


class WorkerError(ChildFailedError):
    """A worker has failed. The text is the error of the first one, with its traceback.

    Attributes:
        rank: of the worker that failed first.
        failure: of that worker.
        failures: of all workers that failed, by rank.
    """

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        """Take at least one failure; see `ChildFailedError`."""
        super().__init__(name, failures)
        self.rank, self.failure = self.get_first_failure()

    def __str__(self) -> str:
        """Return the first error, its traceback, and which other ranks failed."""
        stack = find_traceback(self.failure)
        others = sorted(self.failures.keys() - {self.rank})
        parts = [f"rank {self.rank} of {self.name} failed: {find_summary(self.failure)}"]
        if stack:
            parts.append(f"traceback of rank {self.rank}:\n\n{stack.rstrip()}")
        if others:
            parts.append(f"other ranks that failed: {', '.join(map(str, others))}")
        return "\n\n".join(parts)


def find_summary(failure: ProcessFailure) -> str:
    """Return a failure as one line, such as "ValueError: bad (exit code 1)"."""
    message = failure.message
    text = message if isinstance(message, str) else str(message.get("message", ""))
    first = text.splitlines()[0] if text else "no error was recorded"
    return f"{first} (exit code {failure.exitcode})" if failure.exitcode >= 0 else first


def find_traceback(failure: ProcessFailure) -> str:
    """Return the traceback that the worker recorded; empty: none."""
    message = failure.message
    extra = {} if isinstance(message, str) else message.get("extraInfo", {})
    return _add_sources(str(extra.get("py_callstack", ""))) if isinstance(extra, dict) else ""


def _add_sources(stack: str) -> str:
    """Add the lines of code that a worker cannot find: only the notebook has those of its cells."""
    lines = stack.splitlines()
    whole: list[str] = []
    for line, below in zip(lines, (*lines[1:], ""), strict=False):  # of nothing: nothing
        whole.append(line)
        frame = _FRAME.match(line)
        if frame and not below.startswith("    "):
            source = linecache.getline(frame["file"], int(frame["line"])).strip()
            whole += [f"    {source}"] if source else []
    return "\n".join(whole)
