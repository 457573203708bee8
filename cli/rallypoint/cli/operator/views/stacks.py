"""Evidence: what the workers of a round did at one time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rallypoint.base.printable import to_printable_lines
from rallypoint.base.ranges import join_ranges
from rallypoint.cli.operator.output import clean
from rallypoint.cli.operator.views.words import describe_count, describe_duration
from rallypoint.v1 import evidence_pb2, verdict_pb2
from rallypoint.wire.durations import to_ms

if TYPE_CHECKING:
    from rich.console import RenderableType

FRAMES_MAX = 16
"""Functions that are shown of each stack, the innermost ones."""
STATES = {
    evidence_pb2.PROCESS_STATE_UNINTERRUPTIBLE: "waits in the kernel",
    evidence_pb2.PROCESS_STATE_STOPPED: "stopped by a signal",
    evidence_pb2.PROCESS_STATE_TRACED: "held by a debugger",
    evidence_pb2.PROCESS_STATE_ENDED: "has ended",
}
"""What is worth a word: a process that runs or sleeps shows it by its stack."""


def render_evidence(
    job: str,
    evidence: evidence_pb2.Evidence,
    ranks: Sequence[evidence_pb2.RankEvidence] = (),
) -> RenderableType:
    """Return what the evidence says, then the stacks, then the ranks that were asked for."""
    from rich.console import Group
    from rich.text import Text

    is_odd = any(group.is_odd for group in evidence.groups) or evidence.HasField("culprit")
    title = Text.assemble(
        (f"{clean(job)} round {evidence.round}", "bold"),
        ": ",
        (clean(evidence.text), "red" if is_odd else ""),
    )
    took_s = to_ms(evidence.took) / 1000
    is_old = to_ms(evidence.age) >= 1_000
    ago = f"{describe_duration(evidence.age)} ago; " if is_old else ""
    parts: list[RenderableType] = [
        title,
        Text(
            f"{ago}took {took_s:.1f} s, from {evidence.answered} of {evidence.world_size} workers"
        ),
    ]
    others = [one for one in evidence.findings if one.text != evidence.text]
    for finding in others:
        parts.append(Text(f"also: {clean(finding.text)}"))
    for group in evidence.groups:
        parts += [Text(), Text(_head(group), style="bold red" if group.is_odd else "bold")]
        parts += [Text(line) for line in _stack(group.frames)]
    for rank in ranks:
        parts += [Text(), Text(f"rank {rank.rank}, pid {rank.pid}", style="bold")]
        parts += [Text(line) for line in _rank(rank)]
    return Group(*parts)


def _head(group: evidence_pb2.StackGroup) -> str:
    words = [describe_count(group.count, "rank"), describe_ranks(group.ranks)]
    if group.state in STATES:
        words.append(STATES[group.state])
    return "  ".join(words)


def describe_ranks(ranks: Sequence[verdict_pb2.RankRange]) -> str:
    """Return ranks in words: "0-6,8-63"."""
    return join_ranges([(one.first, one.last) for one in ranks])


def _stack(frames: Sequence[evidence_pb2.Frame]) -> Iterator[str]:
    """Yield a line for each function, the innermost first."""
    shown = frames[:FRAMES_MAX]
    if not shown:
        yield "  no stack"
    width = max((len(clean(frame.function)) for frame in shown), default=0)
    for frame in shown:
        line = f":{frame.line}" if frame.line else ""
        yield f"  {clean(frame.function):{width}}  {clean(_shorten(frame.file))}{line}"
    if len(frames) > len(shown):
        yield f"  and {len(frames) - len(shown)} more"


def _shorten(path: str) -> str:
    """Return a path without what all packages of an environment share."""
    for mark in ("site-packages/", "dist-packages/", "lib/python3"):
        _, found, rest = path.rpartition(mark)
        if found:
            return rest.partition("/")[2] if mark.startswith("lib") else rest
    return path


def _rank(rank: evidence_pb2.RankEvidence) -> Iterator[str]:
    """Yield what is known of one rank."""
    yield f"  processor time {describe_duration(rank.cpu_time)}"
    if rank.state in STATES:
        yield f"  {STATES[rank.state]}"
    if rank.waits_in:
        yield f"  waits in {clean(rank.waits_in)}"
    for group in rank.groups:
        name = clean(group.description or group.name)
        yield f"  group {name}: entered {group.entered}, completed {group.completed}"
        for one in group.latest:
            yield f"    {one.number} {clean(one.operation)} {clean(one.sizes)} {clean(one.dtypes)}"
    for number, thread in enumerate(rank.threads):
        yield "  main thread" if thread.is_main else f"  thread {number}"
        for line in _stack(thread.frames):
            yield f"  {line}"
    for gap in rank.gaps:
        yield f"  missing: {clean(gap)}"
    if rank.stderr_tail:
        yield "  the end of its standard error"
        for line in to_printable_lines(rank.stderr_tail.rstrip()).split("\n"):
            yield f"    {line}"
