"""What a person reads at the end of a job that did not succeed. Pure: messages in, text out.

It has everything that torchrun's report has, in the same words and the same order: what else failed
on this node, then the root cause. The root cause is that of the whole job, on whichever node it
was, with what followed from it. What this node's agent stopped itself is no failure.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Sequence
from datetime import datetime, tzinfo

from rallypoint.agent.last_round import LastRound
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

WIDTH = 60
TRACEBACK_LINES_MAX = 60
RANGES_MAX = 12
"""Ranges of ranks that one line tells."""
LINE_CHARS_MAX = 100
FAILURES_MAX = 8
"""Failed workers of this node that are told one by one: as many as most nodes have."""
NOT_AVAILABLE = "<N/A>"
NO_OTHER_FAILURES = "<NO_OTHER_FAILURES>"


def render_finished(
    finished: agent_pb2.Finished, program: str, here: LastRound, zone: tzinfo | None = None
) -> str:
    """Return the report of a run that has ended; empty for one that succeeded.

    Args:
        finished: how it ended.
        program: what the workers ran.
        here: what became of those of this node.
        zone: the time zone of the reader; None: the local one.
    """
    if finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
        return ""
    word = job_pb2.Outcome.Name(finished.outcome).removeprefix("OUTCOME_")
    verdict = finished.verdict
    lines = ["=" * WIDTH, f"{program} {word}", "-" * WIDTH]
    lines += _local_lines(verdict, here, zone)
    lines += ["-" * WIDTH, "Root Cause (first observed failure):"]
    lines += _verdict_lines(verdict, zone) if finished.HasField("verdict") else []
    rounds = f"round {finished.round}" if finished.round else "no round was formed"
    lines += [f"  restarts  : {finished.restart_count}, {rounds}", "=" * WIDTH]
    return "\n".join(lines)


# --- This node ----------------------------------------------------------------------------------


def _local_lines(verdict: verdict_pb2.Verdict, here: LastRound, zone: tzinfo | None) -> list[str]:
    """Return what failed on this node besides the root cause, and what was stopped here."""
    is_same_round = here.number == verdict.round
    failed = [worker for worker in here.failed if is_same_round and not _is(verdict, worker, here)]
    lines = [f"Failures (other workers of this node, {here.node_name}):"]
    for index, worker in enumerate(failed[:FAILURES_MAX]):
        lines += [f"[{index}]:", *_failed_lines(worker, verdict, here, zone)]
    if not failed:
        lines.append(f"  {NO_OTHER_FAILURES}")
    if len(failed) > FAILURES_MAX:
        more = _join_ranks(failed[FAILURES_MAX:])
        lines.append(f"  and {len(failed) - FAILURES_MAX} more: {more}")
    if here.stopped and is_same_round:
        lines.append(f"  stopped by the agent, not failed: {_join_ranks(here.stopped)}")
    return lines


def _is(verdict: verdict_pb2.Verdict, worker: node_pb2.Worker, here: LastRound) -> bool:
    """Return whether a worker of this node is the one that failed first."""
    culprit = verdict.culprit
    return (
        verdict.HasField("culprit")
        and culprit.node_name == here.node_name
        and (culprit.local_rank, culprit.pid) == (worker.local_rank, worker.pid)
    )


def _failed_lines(
    worker: node_pb2.Worker, verdict: verdict_pb2.Verdict, here: LastRound, zone: tzinfo | None
) -> list[str]:
    """Return the facts of one more failure, and only the last line of what it said."""
    exit, first = worker.exit, verdict.culprit.exit
    said = _last_line(_said(exit)) or _no_traceback(exit, worker.pid)
    if verdict.HasField("culprit") and _last_line(_said(exit)) == _last_line(_said(first)) != "":
        said = "the same as that of the root cause"
    lines = _place_lines(exit, worker.rank, worker.local_rank, worker.pid, here.host_name, zone)
    if exit.agent_signalled_first and worker.pid:
        lines.append("  signalled : by the agent, after it had written its error down")
    return [*lines, f"  traceback : {_cut(said)}"]


def _join_ranks(workers: Sequence[node_pb2.Worker]) -> str:
    """Return "rank 3", or "ranks 0-2,7"."""
    spans: list[tuple[int, int]] = []
    for rank in sorted(worker.rank for worker in workers):
        if spans and spans[-1][1] == rank - 1:
            spans[-1] = (spans[-1][0], rank)
        else:
            spans.append((rank, rank))
    return _join_spans(spans, len(workers))


# --- The whole job ------------------------------------------------------------------------------


def _verdict_lines(verdict: verdict_pb2.Verdict, zone: tzinfo | None) -> list[str]:
    if verdict.HasField("culprit"):
        lines = _culprit_lines(verdict, zone)
    else:
        lines = _wrapped("cause", verdict.text)
    if verdict.consequence_text:
        lines.append(f"  then      : {verdict.consequence_text}")
    if verdict.collateral_count:
        lines.append(f"  collateral: {verdict.collateral_count} more failed:")
        lines += _collateral_lines(verdict)
    return lines


def _culprit_lines(verdict: verdict_pb2.Verdict, zone: tzinfo | None) -> list[str]:
    worker = verdict.culprit
    exit = worker.exit
    ran_s = exit.ran.seconds + exit.ran.nanos / 1e9
    time, *place = _place_lines(
        exit, worker.rank, worker.local_rank, worker.pid, worker.host_name, zone
    )
    lines = [time, f"  node      : {worker.node_name}", *place, f"  ran for   : {ran_s:.1f} s"]
    if verdict.evidence:
        lines += _folded("because", verdict.evidence)
    return lines + _said_lines(exit, worker.pid)


def _place_lines(
    exit: node_pb2.WorkerExit,
    rank: int,
    local_rank: int,
    pid: int,
    host: str,
    zone: tzinfo | None,
) -> list[str]:
    """Return torchrun's lines about a failed worker, but for its traceback."""
    time = NOT_AVAILABLE
    if exit.HasField("time"):
        time = datetime.fromtimestamp(exit.time.seconds, zone).strftime("%Y-%m-%d_%H:%M:%S")
    return [
        f"  time      : {time}",
        f"  host      : {host or NOT_AVAILABLE}",
        f"  rank      : {rank} (local_rank: {local_rank})",
        f"  exitcode  : {describe_exit(exit, pid)}",
        f"  error_file: {exit.error_file or NOT_AVAILABLE}",
    ]


def _collateral_lines(verdict: verdict_pb2.Verdict) -> list[str]:
    """Return one or two lines per kind of failure; the culprit alone is no kind."""
    has_culprit, told, lines = verdict.HasField("culprit"), 0, list[str]()
    for group in verdict.groups:
        spans = [(span.first, span.last) for span in group.ranks]
        is_culprits = has_culprit and _contains(spans, verdict.culprit.rank)
        if is_culprits:
            spans = _without(spans, verdict.culprit.rank)
        count = group.count - is_culprits
        if count == 0:
            continue
        told += count
        ranks = f"{_join_spans(spans, count)}: {group.exit}"
        said = _last_line(group.error)
        is_known = said != "" and said == _last_line(_said(verdict.culprit.exit))
        if is_culprits:
            lines.append(f"    {ranks}, like the first")
        elif is_known:
            lines.append(f"    {ranks}, with the same error")
        else:
            lines.append(f"    {ranks}")
            lines += [f"      {_cut(said)}"] if said else []
    if verdict.collateral_count > told:
        lines.append(f"    and {verdict.collateral_count - told} others")
    return lines


def _contains(spans: Sequence[tuple[int, int]], rank: int) -> bool:
    return any(low <= rank <= high for low, high in spans)


def _without(spans: Sequence[tuple[int, int]], rank: int) -> list[tuple[int, int]]:
    """Return the spans without one rank."""
    found: list[tuple[int, int]] = []
    for low, high in spans:
        cut = [(low, rank - 1), (rank + 1, high)] if low <= rank <= high else [(low, high)]
        found += [(first, last) for first, last in cut if first <= last]
    return found


def _join_spans(spans: Sequence[tuple[int, int]], count: int) -> str:
    """Return "rank 3", or "ranks 0-3,7", with what is beyond the ranges that are told."""
    told = [str(low) if low == high else f"{low}-{high}" for low, high in spans[:RANGES_MAX]]
    shown = sum(high - low + 1 for low, high in spans[:RANGES_MAX])
    more = f" and {count - shown} more" if count > shown else ""
    return f"rank{'s' if count > 1 else ''} {','.join(told)}{more}"


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 1]}…"


def describe_exit(exit: node_pb2.WorkerExit, pid: int) -> str:
    """Return how a worker ended: "1 (pid: 7)" or "-9 (pid: 7) (SIGKILL)", as torchrun has it."""
    if exit.HasField("exit_code"):
        return f"{exit.exit_code} (pid: {pid})"
    text = f"-{exit.signal} (pid: {pid}) ({_signal_name(exit.signal)})"
    return f"{text}, by the kernel for want of memory (OOM)" if exit.oom_killed else text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown signal"


def _said(exit: node_pb2.WorkerExit) -> str:
    """Return what the worker left: its traceback, else the end of its standard error."""
    if exit.HasField("error"):
        return exit.error.traceback or exit.error.message
    return exit.stderr_tail


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _said_lines(exit: node_pb2.WorkerExit, pid: int) -> list[str]:
    kept = _said(exit).rstrip().splitlines()[-TRACEBACK_LINES_MAX:]
    if exit.HasField("error") and kept:
        return [f"  traceback : {kept[0]}", *(f"  {line}" for line in kept[1:])]
    lines = [f"  traceback : {_no_traceback(exit, pid)}"]
    if kept:
        lines += ["  end of its standard error:", *(f"    {line}" for line in kept)]
    return lines


def _no_traceback(exit: node_pb2.WorkerExit, pid: int) -> str:
    """Return what stands in the place of a traceback that was not written down."""
    if exit.HasField("signal"):
        return f"Signal {exit.signal} ({_signal_name(exit.signal)}) received by PID {pid}"
    return f"{NOT_AVAILABLE}; torch.distributed.elastic.multiprocessing.errors.record records it"


def _folded(name: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, LINE_CHARS_MAX - 14, max_lines=8) or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]


def _wrapped(name: str, text: str) -> list[str]:
    first, *rest = text.splitlines() or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]
