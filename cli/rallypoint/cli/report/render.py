"""The report at the end of a job that did not succeed. Pure: messages in, text out.

It contains everything that torchrun's report contains, in the same words and order: the other
failures on this node, then the root cause. The root cause is that of the whole job, on any node,
with its consequence. A worker that the agent itself stopped is not a failure.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Callable, Sequence
from datetime import datetime, tzinfo

from rallypoint.agent.torchelastic.error_files import find_uncaught
from rallypoint.agent.torchelastic.last_round import LastRound
from rallypoint.agent.torchelastic.root_cause import exit_number, is_stopped_after_error
from rallypoint.base.exit_codes import find_signal_name
from rallypoint.base.printable import to_printable_lines
from rallypoint.base.ranges import (
    Range,
    is_in_ranges,
    join_ranges,
    remove_from_ranges,
    to_ranges,
)
from rallypoint.base.tracebacks import HEADER, find_last_chain, split_lines
from rallypoint.base.values import describe_in_sentence
from rallypoint.cli.failed_workers import advise_interpreter, error_text, last_line
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
WRAPPED_LINES_MAX = 8
FAILURES_MAX = 8
"""Failed workers of this node that get an entry each: as many as most nodes have workers."""
NOT_AVAILABLE = "<N/A>"
NO_OTHER_FAILURES = "<NO_OTHER_FAILURES>"


_Numbered = tuple[int, node_pb2.Worker]
"""A failed worker of this node, and its number in the report."""


class _Cause(str):
    """A line of the root cause that stands out on a terminal."""

    __slots__ = ()


def render_finished(
    finished: agent_pb2.Finished,
    script: str,
    here: LastRound,
    zone: tzinfo | None = None,
    *,
    paint: Callable[[str], str] = str,
    columns: int = LINE_CHARS_MAX,
) -> str:
    """Return the report of a run that has ended; empty for one that succeeded.

    Args:
        finished: how it ended.
        script: the workers' program.
        here: how the workers of this node ended.
        zone: the time zone of the reader; None: the local one.
        paint: returns a line of the root cause in colour.
        columns: width of wrapped texts.
    """
    if finished.outcome == job_pb2.OUTCOME_SUCCEEDED:
        return ""
    word = job_pb2.Outcome.Name(finished.outcome).removeprefix("OUTCOME_")
    verdict = finished.verdict
    lines = ["=" * WIDTH, f"{script} {word}", "-" * WIDTH]
    lines += _local_lines(verdict, here, zone)
    lines += ["-" * WIDTH, _Cause("Root Cause (first observed failure):")]
    if finished.HasField("verdict"):
        lines += _verdict_lines(verdict, _number(verdict, here), zone, columns)
    rounds = f"round {finished.round}" if finished.round else "no round was formed"
    lines += [f"  restarts  : {finished.restart_count}, {rounds}", "=" * WIDTH]
    return "\n".join(_to_line(line, paint) for line in lines)


def _to_line(text: str, paint: Callable[[str], str]) -> str:
    """Return one printable line: who poses as the coordinator adds none, and moves no cursor."""
    line = to_printable_lines(text).replace("\n", " ")
    return paint(line) if isinstance(text, _Cause) else line


# --- This node ----------------------------------------------------------------------------------


def _local_lines(verdict: verdict_pb2.Verdict, here: LastRound, zone: tzinfo | None) -> list[str]:
    """Return the failures on this node besides the root cause, and the workers stopped here."""
    is_same_round = here.number == verdict.round
    numbered = [
        (number, worker)
        for number, worker in enumerate(here.failed)
        if is_same_round and not _is_culprit(verdict, worker, here)
    ]
    lines = [f"Failures (other workers on this node, {here.node_name}):"]
    alike = [worker for _, worker in numbered if _is_like_the_first(verdict, worker)]
    if alike:
        lines.append(f"  {_join_ranks(alike)}: the same error as the root cause")
    groups = _group_failed([one for one in numbered if one[1] not in alike])
    for (number, worker), *others in groups[:FAILURES_MAX]:
        lines += [f"[{number}]:", *_failed_lines(worker, here, zone)]
        if others:
            lines.append(f"  the same  : {_join_ranks([one for _, one in others])}")
    if not numbered:
        lines.append(f"  {NO_OTHER_FAILURES}")
    if rest := [one for group in groups[FAILURES_MAX:] for _, one in group]:
        lines.append(f"  and {len(rest)} more: {_join_ranks(rest)}")
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


def _error_of(exit: node_pb2.WorkerExit) -> str:
    """Return the last line of a worker's error; empty: there is none.

    The output of a worker that a signal ended says nothing about the cause, see `_error_lines`.
    """
    is_killed = exit.HasField("signal") and not exit.HasField("error")
    return "" if is_killed else last_line(error_text(exit))


def _is_like_the_first(verdict: verdict_pb2.Verdict, worker: node_pb2.Worker) -> bool:
    """Return whether a worker has the same error as the one that failed first."""
    error = _error_of(worker.exit)
    return error != "" and error == last_line(error_text(verdict.culprit.exit))


def _group_failed(failed: Sequence[_Numbered]) -> list[list[_Numbered]]:
    """Return the failures in groups of those that ended with the same error, in their order."""
    groups = dict[object, list[_Numbered]]()
    for number, worker in failed:
        error = _error_of(worker.exit)
        key = (error, describe_exit(worker.exit, 0)) if error else number
        groups.setdefault(key, []).append((number, worker))
    return [*groups.values()]


def _failed_lines(worker: node_pb2.Worker, here: LastRound, zone: tzinfo | None) -> list[str]:
    """Return the facts of one more failure, with only the last line of its error."""
    exit = worker.exit
    summary = _error_of(exit) or _missing_traceback(exit, worker.pid)
    lines = _place_lines(exit, worker.rank, worker.local_rank, worker.pid, here.host_name, zone)
    if exit.agent_signalled_first and worker.pid:
        lines.append("  signalled : by the agent, after the worker had recorded its error")
    return [*lines, f"  traceback : {_cut(summary)}"]


def _join_ranks(workers: Sequence[node_pb2.Worker]) -> str:
    """Return "rank 3", or "ranks 0-2,7"."""
    return _join_ranges(to_ranges(worker.rank for worker in workers), len(workers))


# --- The whole job ------------------------------------------------------------------------------


def _verdict_lines(
    verdict: verdict_pb2.Verdict, number: int, zone: tzinfo | None, columns: int
) -> list[str]:
    if verdict.HasField("culprit"):
        lines = [f"[{number}]:", *_culprit_lines(verdict, zone, columns)]
    else:
        lines = [_Cause(line) for line in _wrapped("cause", verdict.text.splitlines())]
    if verdict.consequence_text:
        lines.append(f"  then      : {verdict.consequence_text}")
    if verdict.collateral_count:
        head, others = (
            f"  collateral: {verdict.collateral_count} more failed:",
            _collateral(verdict),
        )
        lines += [f"{head} {others[0].strip()}"] if len(others) == 1 else [head, *others]
    return lines


def _culprit_lines(verdict: verdict_pb2.Verdict, zone: tzinfo | None, columns: int) -> list[str]:
    worker = verdict.culprit
    exit = worker.exit
    ran = describe_in_sentence(exit.run_time.ToMilliseconds(), 1)
    time, *place = _place_lines(
        exit, worker.rank, worker.local_rank, worker.pid, worker.host_name, zone
    )
    lines = [time, f"  node      : {worker.node_name}", *place, f"  ran for   : {ran}"]
    if worker.command:
        lines.append(f"  command   : {worker.command}")
    if verdict.evidence:
        lines += _wrapped("because", _wrap(verdict.evidence, columns))
    lines += _error_lines(exit, worker.pid)
    if advice := advise_interpreter(worker):
        lines += _wrapped("python", _wrap(advice, columns))
    return _mark_cause(lines, exit)


def _mark_cause(lines: list[str], exit: node_pb2.WorkerExit) -> list[str]:
    """Mark the last line of the error; without one, how the worker ended."""
    error = _error_of(exit)
    found = [
        at
        for at, line in enumerate(lines)
        if (line.endswith(error) if error else line.startswith("  exitcode"))
    ]
    return [_Cause(line) if at in found[-1:] else line for at, line in enumerate(lines)]


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


def _collateral(verdict: verdict_pb2.Verdict) -> list[str]:
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
        error = last_line(group.error)
        is_known = error != "" and error == last_line(error_text(verdict.culprit.exit))
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


def _error_lines(exit: node_pb2.WorkerExit, pid: int) -> list[str]:
    kept = error_text(exit).rstrip().splitlines()[-TRACEBACK_LINES_MAX:]
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


def _wrap(text: str, columns: int) -> list[str]:
    """Return the lines of a named entry; a path is not broken."""
    room = min(columns, LINE_CHARS_MAX) - 14
    return textwrap.wrap(
        text, room, break_long_words=False, break_on_hyphens=False, max_lines=WRAPPED_LINES_MAX
    )


def _wrapped(name: str, lines: Sequence[str]) -> list[str]:
    """Return a named entry of one or more lines."""
    first, *rest = lines or [""]
    return [f"  {name:10}: {first}", *(f"              {line}" for line in rest)]
