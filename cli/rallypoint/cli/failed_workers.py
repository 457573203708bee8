"""The error of a failed worker, and what to try: for the report of the agent and for operators."""

from __future__ import annotations

from rallypoint.v1 import node_pb2, verdict_pb2

_FLAGS = " -u "
"""What follows the interpreter in the command of a script or module."""


def error_text(exit: node_pb2.WorkerExit) -> str:
    """Return the worker's recorded traceback, or else the end of its standard error."""
    if exit.HasField("error"):
        return exit.error.traceback or exit.error.message
    return exit.stderr_tail


def last_line(text: str) -> str:
    """Return the last line with a word, without its indent; empty: there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def advise_interpreter(worker: verdict_pb2.FailedWorker) -> str:
    """Return the interpreter of a worker that lacks a module, and what chooses another; or ""."""
    python, flags, _ = worker.command.partition(_FLAGS)
    if not flags or not last_line(error_text(worker.exit)).startswith("ModuleNotFoundError:"):
        return ""
    return f"this ran under {python}; PYTHON_EXEC chooses another"
