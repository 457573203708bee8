"""The report at the end of a job that did not succeed. Pure: messages in, text out.

It contains everything that torchrun's report contains, in the same words and order: the other
failures on this node, then the root cause. The root cause is that of the whole job, on any node,
with its consequence. A worker that the agent itself stopped is not a failure.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Sequence
from datetime import datetime, tzinfo

from rallypoint.agent.torchelastic.error_files import find_uncaught
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.root_cause import exit_number, is_stopped_after_error
from rallypoint.base.durations import describe_in_sentence
from rallypoint.base.printable import to_printable_lines
from rallypoint.base.ranges import (
    Range,
    is_in_ranges,
    join_ranges,
    remove_from_ranges,
    to_ranges,
)
from rallypoint.base.signal_names import find_signal_name
from rallypoint.base.tracebacks import HEADER, find_last_chain, split_lines
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, verdict_pb2

WIDTH = 60
TRACEBACK_LINES_MAX = 60
BEFORE_LINES_MAX = 10
"""Lines above a traceback: CUDA and NCCL print their own reason there."""
RANGES_MAX = 12
"""Ranges of ranks on one line."""
LINE_CHARS_MAX = 100
SHELL_SIGNAL = 128
"""A shell exits with this and the number of the signal that ended its program."""
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
"""Signals at which Python's faulthandler prints a traceback."""
FAILURES_MAX = 8
"""Failed workers of this node that get an entry each: as many as most nodes have workers."""
NOT_AVAILABLE = "<N/A>"
NO_OTHER_FAILURES = "<NO_OTHER_FAILURES>"


def render_finished(
    finished: agent_pb2.Finished, script: str, here: LastRound, zone: tzinfo | None = None
) -> str:
    """Return the report of a run that has ended; empty for one that succeeded.

    Args:
        finished: how it ended.
        script: the workers' program.
        here: how the workers of this node ended.
        zone: the time zone of the reader; None: the local one.
    """
    if finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
        return ""
    word = job_pb2.Outcome.Name(finished.outcome).removeprefix("OUTCOME_")
    verdict = finished.verdict
    lines = ["=" * WIDTH, f"{script} {word}", "-" * WIDTH]
    lines += _local_lines(verdict, here, zone)
    lines += ["-" * WIDTH, "Root Cause (first observed failure):"]
    if finished.HasField("verdict"):
        lines += _verdict_lines(verdict, _number(verdict, here), zone)
    rounds = f"round {finished.round}" if finished.round else "no round was formed"
    lines += [f"  restarts  : {finished.restart_count}, {rounds}", "=" * WIDTH]
    return "\n".join(map(_to_line, lines))


def _to_line(text: str) -> str:
    """Return one printable line: who poses as the coordinator adds none, and moves no cursor."""
    return to_printable_lines(text).replace("\n", " ")


# --- This node ----------------------------------------------------------------------------------


def _local_lines(verdict: verdict_pb2.Verdict, here: LastRound, zone: tzinfo | None) -> list[str]:
    """Return the failures on this node besides the root cause, and the workers stopped here."""
    is_same_round = here.number == verdict.round
    numbered = [
        (number, worker)
        for number, worker in enumerate(here.failed)
        if is_same_round and not _is_culprit(verdict, worker, here)
    ]
    failed = [worker for _, worker in numbered]
    lines = [f"Failures (other workers on this node, {here.node_name}):"]
    for number, worker in numbered[:FAILURES_MAX]:
        lines += [f"[{number}]:", *_failed_lines(worker, verdict, here, zone)]
    if not failed:
        lines.append(f"  {NO_OTHER_FAILURES}")
    if len(failed) > FAILURES_MAX:
        more = _join_ranks(failed[FAILURES_MAX:])
        lines.append(f"  and {len(failed) - FAILURES_MAX} more: {more}")
    if here.stopped and is_same_round:
        lines.append(f"  stopped by the agent, not failed: {_join_ranks(here.stopped)}")
    return lines


def _number(verdict: verdict_pb2.Verdict, here: LastRound) -> int:
    """Return the number of the root cause among the failures of this node, or the next one."""
    if here.number != verdict.round:
        return 0
    numbers = range(len(here.failed))
    own = (number for number in numbers if _is_culprit(verdict, here.failed[number], here))
    return next(own, len(numbers))


def _is_culprit(verdict: verdict_pb2.Verdict, worker: node_pb2.Worker, here: LastRound) -> bool:
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
    """Return the facts of one more failure, with only the last line of its error."""
    exit, first = worker.exit, verdict.culprit.exit
    # The output of a worker that a signal ended says nothing about the cause, see `_error_lines`.
    is_killed = exit.HasField("signal") and not exit.HasField("error")
    error = "" if is_killed else _last_line(_error_text(exit))
    summary = error or _missing_traceback(exit, worker.pid)
    if verdict.HasField("culprit") and error == _last_line(_error_text(first)) != "":
        summary = "the same as that of the root cause"
    lines = _place_lines(exit, worker.rank, worker.local_rank, worker.pid, here.host_name, zone)
    if exit.agent_signalled_first and worker.pid:
        lines.append("  signalled : by the agent, after the worker had recorded its error")
    return [*lines, f"  traceback : {_cut(summary)}"]


def _join_ranks(workers: Sequence[node_pb2.Worker]) -> str:
    """Return "rank 3", or "ranks 0-2,7"."""
    return _join_ranges(to_ranges(worker.rank for worker in workers), len(workers))


# --- The whole job ------------------------------------------------------------------------------


def _verdict_lines(verdict: verdict_pb2.Verdict, number: int, zone: tzinfo | None) -> list[str]:
    if verdict.HasField("culprit"):
        lines = [f"[{number}]:", *_culprit_lines(verdict, zone)]
    else:
        lines = _wrapped("cause", verdict.text.splitlines())
    if verdict.consequence_text:
        lines.append(f"  then      : {verdict.consequence_text}")
    if verdict.collateral_count:
        lines.append(f"  collateral: {verdict.collateral_count} more failed:")
        lines += _collateral_lines(verdict)
    return lines


def _culprit_lines(verdict: verdict_pb2.Verdict, zone: tzinfo | None) -> list[str]:
    worker = verdict.culprit
    exit = worker.exit
    ran = describe_in_sentence(exit.run_time.ToMilliseconds(), 1)
    time, *place = _place_lines(
        exit, worker.rank, worker.local_rank, worker.pid, worker.host_name, zone
    )
    lines = [time, f"  node      : {worker.node_name}", *place, f"  ran for   : {ran}"]
    if verdict.evidence:
        lines += _wrapped(
            "because", textwrap.wrap(verdict.evidence, LINE_CHARS_MAX - 14, max_lines=8)
        )
    return lines + _error_lines(exit, worker.pid)


def _place_lines(
    exit: node_pb2.WorkerExit,
    rank: int,
    local_rank: int,
    pid: int,
    host: str,
    zone: tzinfo | None,
) -> list[str]:
    """Return torchrun's lines about a failed worker, without its traceback."""
    time = NOT_AVAILABLE
    if exit.HasField("failed_at"):
        time = datetime.fromtimestamp(exit.failed_at.seconds, zone).strftime("%Y-%m-%d_%H:%M:%S")
    return [
        f"  time      : {time}",
        f"  host      : {host or NOT_AVAILABLE}",
        f"  rank      : {rank} (local_rank: {local_rank})",
        f"  exitcode  : {describe_exit(exit, pid)}",
        f"  error_file: {exit.error_file or NOT_AVAILABLE}",
        *([f"  log       : {exit.stderr_file}"] if exit.stderr_file else []),
    ]


def _collateral_lines(verdict: verdict_pb2.Verdict) -> list[str]:
    """Return one or two lines per kind of failure, without the culprit."""
    has_culprit, shown, lines = verdict.HasField("culprit"), 0, list[str]()
    for group in verdict.groups:
        spans = tuple((span.first, span.last) for span in group.ranks)
        is_culprits = has_culprit and is_in_ranges(spans, verdict.culprit.rank)
        if is_culprits:
            spans = remove_from_ranges(spans, verdict.culprit.rank)
        count = group.count - is_culprits
        if count == 0:
            continue
        shown += count
        ranks = f"{_join_ranges(spans, count)}: {group.exit_text}"
        error = _last_line(group.error)
        is_known = error != "" and error == _last_line(_error_text(verdict.culprit.exit))
        if is_culprits:
            lines.append(f"    {ranks}, the same as the root cause")
        elif is_known:
            lines.append(f"    {ranks}, with the same error")
        else:
            lines.append(f"    {ranks}")
            lines += [f"      {_cut(error)}"] if error else []
    if verdict.collateral_count > shown:
        lines.append(f"    and {verdict.collateral_count - shown} more")
    return lines


def _join_ranges(ranges: Sequence[Range], count: int) -> str:
    """Return "rank 3", or "ranks 0-3,7", and how many ranks are not shown."""
    shown = sum(last - first + 1 for first, last in ranges[:RANGES_MAX])
    more = f" and {count - shown} more" if count > shown else ""
    return f"rank{'s' if count > 1 else ''} {join_ranges(ranges[:RANGES_MAX])}{more}"


def _cut(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"{line[: LINE_CHARS_MAX - 1]}…"


def describe_exit(exit: node_pb2.WorkerExit, pid: int) -> str:
    """Return how a worker ended, as torchrun does: "1 (pid: 7)" or "-9 (pid: 7) (SIGKILL)"."""
    if exit.HasField("exit_code") or is_stopped_after_error(exit):
        return f"{exit_number(exit)} (pid: {pid}){_explain_code(exit.exit_code)}"
    if not exit.HasField("signal"):
        return f"{NOT_AVAILABLE} (pid: {pid}), it recorded its error and had not ended yet"
    text = f"-{exit.signal} (pid: {pid}) ({_signal_name(exit.signal)})"
    return f"{text}, killed by the kernel's OOM killer" if exit.oom_killed else text


def _explain_code(code: int) -> str:
    """Return what a code means with which a shell reports that a signal ended its program."""
    name = find_signal_name(code - SHELL_SIGNAL)
    memory = ", often for lack of memory" if code - SHELL_SIGNAL == signal.SIGKILL else ""
    return f", as of a program that {name} ended{memory}" if name else ""


def _signal_name(number: int) -> str:
    return find_signal_name(number) or "unknown signal"


def _error_text(exit: node_pb2.WorkerExit) -> str:
    """Return the worker's recorded traceback, or else the end of its standard error."""
    if exit.HasField("error"):
        return exit.error.traceback or exit.error.message
    return exit.stderr_tail


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def _error_lines(exit: node_pb2.WorkerExit, pid: int) -> list[str]:
    kept = _error_text(exit).rstrip().splitlines()[-TRACEBACK_LINES_MAX:]
    if exit.HasField("error") and kept:
        return [f"  traceback : {kept[0]}", *(f"  {line}" for line in kept[1:])]
    if not kept:
        return [f"  traceback : {_missing_traceback(exit, pid)}"]
    printed = [] if exit.HasField("signal") else _printed_lines(exit.stderr_tail)
    if printed:
        return printed
    is_killed = exit.HasField("signal")
    missing = _missing_traceback(exit, pid) if is_killed else "see the end of standard error below"
    tail = (f"    {line}" for line in kept)
    return [f"  traceback : {missing}", "  end of standard error:", *tail]


def _printed_lines(tail: str) -> list[str]:
    """Return the traceback with which a standard error ends, and the lines above it, or nothing."""
    if find_uncaught(tail) is None:
        return []
    lines = split_lines(tail.rstrip())
    begin = next(error.begin for error in find_last_chain(lines) if not error.is_cut)
    stack = lines[begin:][-TRACEBACK_LINES_MAX:]
    # A progress bar may share the line of the header.
    first = HEADER if stack[0].endswith(HEADER) else stack[0]
    traceback = [f"  traceback : {first}", *(f"  {line}" for line in stack[1:])]
    before = lines[max(0, begin - BEFORE_LINES_MAX) : begin]
    if not any(before):
        return traceback
    return [*traceback, "  standard error above it:", *(f"    {line}" for line in before)]


def _missing_traceback(exit: node_pb2.WorkerExit, pid: int) -> str:
    """Return the text in place of a traceback that was not recorded."""
    if exit.HasField("signal"):
        text = f"Signal {exit.signal} ({_signal_name(exit.signal)}) received by PID {pid}"
        is_silent = exit.signal in FAULTS and "Fatal Python error" not in exit.stderr_tail
        return f"{text}; with PYTHONFAULTHANDLER=1 it prints a traceback" if is_silent else text
    return f"{NOT_AVAILABLE}; torch.distributed.elastic.multiprocessing.errors.record records it"


def _wrapped(name: str, lines: Sequence[str]) -> list[str]:
    """Return a named entry of one or more lines."""
    first, *rest = lines or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]
