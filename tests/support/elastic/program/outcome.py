"""What comes of a launch, as values that JSON can hold and that are the same every time.

Process ids, times, host names and paths become words. Of a traceback only what concerns the cases
remains: which frames a launcher has between is not a matter of its meaning.
"""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.elastic.program import api
from support.elastic.program.case import Setup

TESTS = str(Path(__file__).parents[3])
_INDENT = " |"
"""Before a line of a traceback, also of a group of exceptions."""
_FRAME = re.compile(r'([ |]*)File "([^"]+)", line \d+, in (.+)')


def launch(
    setup: Setup, entrypoint: Any, *args: Any, of: Callable[[Any], Any] = repr, **fields: Any
) -> Any:
    """Launch with `elastic_launch`, and describe what it returns or raises.

    Args:
        of: what becomes of each return value.
        fields: fields of the LaunchConfig.
    """
    config = setup.config(**fields)
    return attempt(setup, lambda: by_rank(api.elastic_launch(config, entrypoint)(*args), of))


def by_rank(values: dict[int, Any], of: Callable[[Any], Any] = repr) -> dict[str, Any]:
    """Return what becomes of values, by rank in order."""
    return {str(rank): of(values[rank]) for rank in sorted(values)}


def attempt(setup: Setup, call: Callable[..., Any], *args: Any, **fields: Any) -> Any:
    """Return what a call returns, or describe what it raises."""
    started = time.time()  # noqa: TID251  # the time stamps of failures are of this clock
    try:
        return {"returned": call(*args, **fields)}
    except BaseException as error:  # noqa: BLE001  # whatever it raises is the result
        return {"raised": describe_error(setup, error, started)}


def describe_error(setup: Setup, error: BaseException, started: float) -> dict[str, Any]:
    """Return the kind, the text and the fields of an error."""
    found: dict[str, Any] = {"type": type(error).__name__}
    if isinstance(error, api.ChildFailedError):
        rank, first = error.get_first_failure()
        return {
            **found,
            "name": clean(setup, error.name),
            "first": [rank, first is error.failures[rank]],
            "failures": describe_failures(setup, error.failures, started),
            "text": clean(setup, str(error)),
        }
    if isinstance(error, api.SignalException):
        return {**found, "sigval": error.sigval.name, "text": clean(setup, str(error))}
    return {**found, "text": clean(setup, str(error))}


def describe_result(setup: Setup, result: Any, started: float) -> dict[str, Any]:
    """Describe a RunResult."""
    return {
        "type": type(result).__name__,
        "state": [type(result.state).__name__, result.state.name, result.state.value],
        "is_failed": result.is_failed(),
        "return_values": by_rank(result.return_values),
        "failures": describe_failures(setup, result.failures, started),
    }


def describe_failures(setup: Setup, failures: dict[int, Any], started: float) -> dict[str, Any]:
    """Describe failures by global rank."""
    return {
        str(rank): describe_failure(setup, failures[rank], started) for rank in sorted(failures)
    }


def describe_failure(setup: Setup, failure: Any, started: float) -> dict[str, Any]:
    """Describe a ProcessFailure with all its fields."""
    now = time.time()  # noqa: TID251  # as above
    data = dict(failure.error_file_data)
    return {
        "type": type(failure).__name__,
        "local_rank": failure.local_rank,
        "exitcode": failure.exitcode,
        "signal_name": failure.signal_name(),
        "has_pid": type(failure.pid) is int and failure.pid > 1,
        "error_file": clean(setup, failure.error_file),
        "error_file_data": clean_deep(setup, data),
        "message": clean_deep(setup, failure.message),
        "is_timely": type(failure.timestamp) is int and int(started) <= failure.timestamp <= now,
        "isoformat": clean(setup, failure.timestamp_isoformat()),
    }


def clean_deep(setup: Setup, value: Any) -> Any:
    """Clean all texts of a value, and replace the time stamp of an error file."""
    if isinstance(value, dict):
        return {
            key: "TIME" if key == "timestamp" else clean_deep(setup, one)
            for key, one in sorted(value.items())
        }
    return clean(setup, value) if isinstance(value, str) else value


def clean(setup: Setup, text: str) -> str:
    """Return a text without what differs from run to run."""
    text = "\n".join(_without_foreign_frames(text.split("\n")))
    text = text.replace(str(setup.folder), "@folder").replace(TESTS, "@tests")
    text = text.replace(sys.executable, "@python").replace(socket.getfqdn(), "HOST")
    text = text.replace(setup.folder.name, "@run")
    text = re.sub(r"^(=|-)\1{9,}$", r"\1\1\1", text, flags=re.MULTILINE)  # as wide as a pid is
    text = re.sub(r"torchelastic_\w+", "torchelastic_DRAWN", text)
    text = re.sub(r"@folder/logs-\d/[^/\s]+", "@logs/@run", text)
    text = re.sub(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"\b(pid: |PID |Process |process )\d+", r"\1N", text)
    text = re.sub(r"(host +: ).*", r"\1HOST", text)
    return re.sub(r"0x[0-9a-f]+", "0xN", text)


def _without_foreign_frames(lines: list[str]) -> list[str]:
    """Drop frames that are not of the cases, markers below a line, and line numbers."""
    kept: list[str] = []
    indent, dropped = 0, False
    for line in lines:
        frame = _FRAME.fullmatch(line)
        if frame:
            indent, dropped = len(frame[1]), "/support/elastic/program/" not in frame[2]
            if not dropped:
                kept.append(f'{frame[1]}File "{Path(frame[2]).name}", in {frame[3]}')
            continue
        is_below = len(line) - len(line.lstrip(_INDENT)) > indent
        if not (is_below and (dropped or set(line.strip(_INDENT)) <= {"^", "~"})):
            dropped = False
            kept.append(line)
    return kept
