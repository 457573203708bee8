"""What the commands print about the scenes, in terminals of two widths and in a pipe.

`python tests/support/operator/transcripts.py` writes the transcripts again; look at the difference.
"""

from __future__ import annotations

import functools
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from rallypoint.cli.operator import app
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.v1 import job_pb2
from support.operator import scenes

FOLDER = Path(__file__).parents[2] / "unit" / "cli" / "operator" / "transcripts"
WIDTHS = (80, 200, 0)
"""Columns; 0: a pipe, in which no line is cut or wrapped."""
CASES = {
    **{f"explain-{name}": ("explain", scene) for name, scene in scenes.WAITS.items()},
    "explain-recovered": ("explain", scenes.recovered),
    **{f"status-{name}": ("status", scene) for name, scene in scenes.JOBS.items()},
    **{f"verdict-{name}": ("verdict", scene) for name, scene in scenes.FAILURES.items()},
}
"""Of each transcript the command and the job."""


@functools.cache
def find_case(name: str) -> tuple[str, job_pb2.Job]:
    """Return the command of a transcript and its job, which is shared."""
    command, scene = CASES[name]
    return command, scenes.show(scene())


def print_scene(command: str, job: job_pb2.Job) -> str:
    """Return what a command prints about a job, in each width."""
    parts = list[str]()
    for width in WIDTHS:
        parts.append(f"$ rallypoint {command} {job.job_id}{_describe(width)}\n")
        parts.append(run(command, job, width))
    return "\n".join(parts)


def run(command: str, job: job_pb2.Job, width: int, *words: str) -> str:
    """Return what a command prints about a job."""
    output = io.StringIO()
    with _served(job), _columns(width), redirect_stdout(output), redirect_stderr(output):
        assert app.main(command, [job.job_id, *words]) == 0
    return output.getvalue()


@contextmanager
def _served(job: job_pb2.Job) -> Iterator[None]:
    """Answer every call about a job with this one."""
    answer = SimpleNamespace(job=job)
    client = SimpleNamespace(get_job=lambda *words, **options: answer)
    with mock.patch.object(Invocation, "client", property(lambda self: client)):
        yield


@contextmanager
def _columns(width: int) -> Iterator[None]:
    variables: dict[str, Any] = {"TZ": "UTC"} | ({"COLUMNS": str(width)} if width else {})
    with mock.patch.dict(os.environ, variables):
        if not width:
            os.environ.pop("COLUMNS", None)
        time.tzset()
        yield
    time.tzset()


def _describe(width: int) -> str:
    return f"   # {width} columns" if width else " | cat"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.txt"):
        old.unlink()
    for name in CASES:
        text = print_scene(*find_case(name))
        (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    print(f"{len(CASES)} transcripts in {FOLDER}", file=sys.stderr)
