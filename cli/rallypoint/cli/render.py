"""What a person reads at the end of a job. Pure: messages in, text out."""

from __future__ import annotations

import signal

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

WIDTH = 64
TRACEBACK_LINES_MAX = 60


def render_finished(finished: agent_pb2.Finished, program: str) -> str:
    """Return the report of a run that has ended; empty for one that succeeded."""
    if finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
        return ""
    word = job_pb2.Outcome.Name(finished.outcome).removeprefix("OUTCOME_")
    lines = ["=" * WIDTH, f"{program} {word}", "-" * WIDTH]
    if finished.HasField("verdict"):
        lines += _verdict_lines(finished.verdict)
    rounds = f"round {finished.round}" if finished.round else "no round was formed"
    lines += [f"  restarts  : {finished.restart_count}, {rounds}", "=" * WIDTH]
    return "\n".join(lines)


def _verdict_lines(verdict: verdict_pb2.Verdict) -> list[str]:
    if verdict.HasField("culprit"):
        lines = ["First failure:", *_worker_lines(verdict.culprit)]
        lines += _said_lines(verdict.culprit.exit)
    else:
        lines = _wrapped("cause", verdict.text)
    if verdict.consequence_text:
        lines.append(f"  then      : {verdict.consequence_text}")
    if verdict.collateral_count:
        lines.append(f"  collateral: {verdict.collateral_count} more failed after it:")
        lines += [f"    {_short(worker)}" for worker in verdict.collateral]
        hidden = verdict.collateral_count - len(verdict.collateral)
        if hidden > 0:
            lines.append(f"    and {hidden} others")
    return lines


def _worker_lines(worker: verdict_pb2.FailedWorker) -> list[str]:
    ran_s = worker.exit.ran.seconds + worker.exit.ran.nanos / 1e9
    return [
        f"  node      : {worker.node_name}",
        f"  rank      : {worker.rank} (local_rank: {worker.local_rank})",
        f"  exitcode  : {describe_exit(worker.exit)} (pid: {worker.pid})",
        f"  ran for   : {ran_s:.1f} s",
    ]


def describe_exit(exit: node_pb2.WorkerExit) -> str:
    """Return how a worker ended: "1" or "-9 (SIGKILL)", as torchrun writes it."""
    if exit.HasField("exit_code"):
        return str(exit.exit_code)
    try:
        name = signal.Signals(exit.signal).name
    except ValueError:
        name = "unknown signal"
    return f"-{exit.signal} ({name})"


def _said_lines(exit: node_pb2.WorkerExit) -> list[str]:
    """Return what the worker left: its traceback, else the end of its standard error."""
    if exit.HasField("error"):
        text, title = exit.error.traceback or exit.error.message, "traceback"
    else:
        text, title = exit.stderr_tail, "end of its standard error"
    if not text.strip():
        return []
    kept = text.rstrip().splitlines()[-TRACEBACK_LINES_MAX:]
    return [f"  {title}:", *(f"    {line}" for line in kept)]


def _short(worker: verdict_pb2.FailedWorker) -> str:
    return f"rank {worker.rank} on {worker.node_name}: exitcode {describe_exit(worker.exit)}"


def _wrapped(name: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]
