"""A shell that runs printed commands one after the other and compares what they print, loosely."""

from __future__ import annotations

import re
import subprocess
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from support.processes.feed import Feed

LIMIT_S = 120.0
"""For one command: the import of torch takes most of it, and longer on a busy machine."""
_LOG = re.compile(r"\S+ \d\d:\d\d:\d\d (\w+) +(\w+) *(.*)")
_KEY = re.compile(r"(?:^|\s)(\w+)=")
_WHY = re.compile(r"why='([^']*)'")
_HEX = r"\b[0-9a-f]{6,}\b"
_DURATION = re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\b")
"""Such as `3m20s`: a time, in whatever units it is shown."""
_NUMBER = re.compile(rf"(?:{_HEX}|\d+)(?:[.,:-](?:{_HEX}|\d+))*")


def shape(line: str) -> str:
    """Return what must agree: all but numbers; of a log line the event, the fields and a reason."""
    line = _DURATION.sub("#", line)
    if log := _LOG.match(line):
        level, event, fields = log.groups()
        why = _WHY.findall(_NUMBER.sub("#", fields))
        return " ".join([level, event, *sorted(_KEY.findall(fields)), *why])
    return " ".join(_NUMBER.sub("#", line).rstrip(",").split())


def _has_shape(wanted: str, line: str) -> bool:
    """Return whether a line has a shape, also beside another: workers write without a buffer, the
    text and its end apart. `…` stands for anything."""
    found, at = shape(line), 0
    for part in map(str.strip, wanted.split("…")):
        at = found.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


class Shell:
    """A bash that takes commands as they are printed.

    Its programs buffer lines, as anyone's do: else two workers' lines may be one.
    """

    def __init__(self, env: Mapping[str, str], cwd: Path) -> None:
        self._commands = 0
        self._lines: Feed[str] = Feed("output of the shell")
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            env={name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"},
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, command: str, limit_s: float = LIMIT_S) -> int:
        """Run a command; return its exit code, or 0 at once if it ends with `&`."""
        assert self._process.stdin is not None
        self._commands += 1
        mark = f"@@ {self._commands}"
        # A worker that reads must not take the next command.
        self._process.stdin.write(f'{{ {command}\n}} < /dev/null; echo "{mark} $?"\n')
        self._process.stdin.flush()
        answer = self._lines.wait(lambda line: mark in line, limit_s=limit_s)[-1]
        return int(answer.rsplit(maxsplit=1)[1])

    def await_shapes(self, expected: Sequence[str]) -> None:
        """Wait until every expected line was printed, each as often as it is expected."""
        for wanted, count in Counter(map(shape, expected)).items():
            self._lines.wait(partial(_has_shape, wanted), count, LIMIT_S)

    def close(self) -> None:
        """Wait for the shell; whatever it has started must be gone, or going."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._reader.join()

    def text(self) -> str:
        return "\n".join(self._lines.items())

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as pipe:
            for line in pipe:
                self._lines.put(line.rstrip("\n"))
        self._lines.end()
