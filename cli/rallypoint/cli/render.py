"""What a person reads at the end of a job. Pure: messages in, text out."""

from __future__ import annotations

import signal
import textwrap

from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

WIDTH = 64
TRACEBACK_LINES_MAX = 60
RANGES_MAX = 12
"""Ranges of ranks that one line tells."""
LINE_CHARS_MAX = 120


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
        if verdict.evidence:
            lines += _folded("because", verdict.evidence)
        lines += _said_lines(verdict.culprit.exit)
    else:
        lines = _wrapped("cause", verdict.text)
    if verdict.consequence_text:
        lines.append(f"  then      : {verdict.consequence_text}")
    if verdict.collateral_count:
        lines.append(f"  collateral: {verdict.collateral_count} more failed:")
        lines += _collateral_lines(verdict)
    return lines


def _collateral_lines(verdict: verdict_pb2.Verdict) -> list[str]:
    """Return one or two lines per kind of failure; the culprit alone is no kind."""
    has_culprit, told, lines = verdict.HasField("culprit"), 0, list[str]()
    for group in verdict.groups:
        is_culprits = has_culprit and _contains(group, verdict.culprit.rank)
        count = group.count - is_culprits
        if count == 0:
            continue
        told += count
        ranks = f"{_ranks(group)}: {group.exit}"
        lines.append(f"    {ranks}, like the first" if is_culprits else f"    {ranks}")
        said = next((line for line in reversed(group.error.splitlines()) if line.strip()), "")
        if said and not is_culprits:
            lines.append(f"      {_cut(said.strip())}")
    if verdict.collateral_count > told:
        lines.append(f"    and {verdict.collateral_count - told} others")
    return lines


def _contains(group: verdict_pb2.FailureGroup, rank: int) -> bool:
    return any(span.first <= rank <= span.last for span in group.ranks)


def _ranks(group: verdict_pb2.FailureGroup) -> str:
    """Return "rank 3", or "ranks 0-3,7", with what is beyond the ranges that are told."""
    spans = [
        str(span.first) if span.first == span.last else f"{span.first}-{span.last}"
        for span in group.ranks[:RANGES_MAX]
    ]
    shown = sum(span.last - span.first + 1 for span in group.ranks[:RANGES_MAX])
    more = f" and {group.count - shown} more" if group.count > shown else ""
    return f"rank{'s' if group.count > 1 else ''} {','.join(spans)}{more}"


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 1]}…"


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
    if exit.oom_killed:
        name += ", by the kernel for want of memory (OOM)"
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


def _folded(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, LINE_CHARS_MAX - 14, max_lines=8) or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]


def _wrapped(name: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]
