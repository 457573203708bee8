"""The two commands under test as real processes: start, read, signal and await them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from support.processes.feed import LIMIT_S, Feed

SCRIPTS = Path(sysconfig.get_path("scripts"))
COORDINATOR = str(SCRIPTS / "coordinator")
NODE_AGENT = str(SCRIPTS / "node-agent")
RALLYPOINT = str(SCRIPTS / "rallypoint")

CATCH_UP_S = 5.0
ENDING_S = 20.0
"""How long a program that took too long may take to end all that it has started."""


class Command:
    """One running command, with what it and its workers print."""

    def __init__(self, name: str, argv: list[str], env: Mapping[str, str], cwd: Path) -> None:
        self.name = name
        self._out: Feed[str] = Feed(f"standard output of {name}")
        self._err: Feed[str] = Feed(f"standard error of {name}")
        self._process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=_read, args=(pipe, feed), name=name)
            for pipe, feed in (
                (self._process.stdout, self._out),
                (self._process.stderr, self._err),
            )
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def kill(self) -> None:
        """SIGKILL, and collect the status."""
        self._process.kill()
        self._process.wait()

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Return the exit code, as a shell would show it for a signal: -n."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs\n{self.stderr()}") from None

    def stdout_line(self) -> str:
        """Wait for the first line of standard output."""
        return self._out.wait(lambda line: True)[0]

    def wait_stdout_line(self, is_wanted: Callable[[str], bool], limit_s: float = LIMIT_S) -> str:
        """Wait for a line of standard output; return it."""
        return self._wait_stdout(is_wanted, limit_s=limit_s)[0]

    def wait_stdout(self, line: str, count: int = 1) -> None:
        """Wait until standard output has had a line so many times."""
        self._wait_stdout(lambda printed: printed == line, count)

    def wait_stdout_text(self, text: str, count: int = 1) -> None:
        """Wait for the `count`-th line of standard output that contains the text."""
        self._wait_stdout(lambda line: text in line, count)

    def _wait_stdout(
        self, is_wanted: Callable[[str], bool], count: int = 1, limit_s: float = LIMIT_S
    ) -> list[str]:
        try:
            return self._out.wait(is_wanted, count, limit_s)
        except AssertionError as error:
            error.add_note(f"standard error:\n{self.stderr()}")
            raise

    def stderr(self) -> str:
        """Return the output so far; all of it once the command and its workers are gone."""
        self._catch_up()
        return "\n".join(self._err.items())

    def stdout(self) -> str:
        self._catch_up()
        return "\n".join(self._out.items())

    def said(self) -> list[str]:
        """Return the lines for a person: standard error without the log."""
        self._catch_up()
        return [line for line in self._err.items() if _event(line) is None]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the log's events of these names so far."""
        self._catch_up()
        found = (_event(line) for line in self._err.items())
        return [event for event in found if event is not None and event["event"] in names]

    def wait_event(
        self, *names: str, count: int = 1, why: str = "", limit_s: float = LIMIT_S
    ) -> dict[str, Any]:
        """Wait for the `count`-th event that has one of these names and `why` in its reason."""

        def is_wanted(line: str) -> bool:
            event = _event(line)
            if event is None or event["event"] not in names:
                return False
            return why in str(event.get("why", ""))

        event = _event(self._err.wait(is_wanted, count, limit_s)[-1])
        assert event is not None
        return event

    def wait_text(self, text: str, count: int = 1) -> None:
        """Wait for the `count`-th line of standard error that contains the text."""
        self._err.wait(lambda line: text in line, count)

    def _catch_up(self) -> None:
        """Wait for the last output of an ended command, unless another process holds its pipes."""
        if not self.is_running():
            for reader in self._readers:
                reader.join(CATCH_UP_S)

    def drain(self) -> None:
        """Read everything that was printed; every process with the pipes must be gone."""
        for reader in self._readers:
            reader.join(LIMIT_S)
            assert not reader.is_alive(), f"a process still holds the output of {self.name}"


def run_program(argv: Sequence[str | Path], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program that starts others and ends by itself.

    One that takes too long gets SIGTERM first: after SIGKILL, what it has started would run on.

    Raises:
        TimeoutExpired: it took longer than `limit_s`.
    """
    program = subprocess.Popen(
        [*map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with program:
        try:
            stdout, stderr = program.communicate(timeout=limit_s)
        except BaseException:  # KeyboardInterrupt, or a test's own limit, too
            program.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.communicate(timeout=ENDING_S)
            program.kill()
            raise
    return subprocess.CompletedProcess(program.args, program.returncode, stdout, stderr)


def _read(pipe: IO[str], feed: Feed[str]) -> None:
    with pipe:
        for line in pipe:
            for shown in with_prose(line.rstrip("\n")):
                feed.put(shown)
    feed.end()


def with_prose(line: str) -> list[str]:
    """Return a line of a log in JSON, with the lines for a person that a log in text has."""
    event = _event(line) or {}
    match event.get("event"):
        case "agent_ended":
            return [f"{event['command']}: {event['why']}"]
        case "command_failed":
            return [f"{event['command']}: error: {event['why']}"]
    report = event.pop("report", "").splitlines()
    return [json.dumps(event), *report] if report else [line]


def _event(line: str) -> dict[str, Any] | None:
    """Return the log event that a line is, or None."""
    if not line.startswith('{"'):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def find_marked(mark: str) -> list[int]:
    """Return the processes that have `NAME=value` in their environment."""
    needle = b"\0" + mark.encode() + b"\0"
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                environ = Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue  # gone, or not ours
            if needle in b"\0" + environ + b"\0":
                found.append(int(name))
    return sorted(found)


def describe(pid: int) -> str:
    """Return a process's pid and command line, for a failure message."""
    try:
        argv = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        argv = b"gone by now"
    return f"{pid}: {argv.decode(errors='replace')[:200]}"


def await_none_marked(
    mark: str, spared: Collection[int] = (), limit_s: float = LIMIT_S
) -> list[int]:
    """Wait until only spared processes have the mark; return the others at the limit."""
    end_s = time.monotonic() + limit_s
    while left := [pid for pid in find_marked(mark) if pid not in spared]:
        if not _await_death(left[0], end_s - time.monotonic()):
            return left
    return []


def kill(pid: int) -> None:
    """SIGKILL a process, and wait until it is dead; do nothing if it was gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        assert _await_death(pid, LIMIT_S), f"survived SIGKILL: {describe(pid)}"


def _await_death(pid: int, limit_s: float) -> bool:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], max(0.0, limit_s))[0])
    finally:
        os.close(fd)
