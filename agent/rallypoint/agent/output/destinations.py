"""Where the output of each worker goes. Pure: what was asked for and a round in, paths out.

A stream has up to three listeners: a file, the console, and the file of filtered lines. What torch
calls `LogsDest` says so for all workers of a round (`Destinations`, in the same shape, because a
plug-in for logs provides one of its own); what a single stream needs is its `Route`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from string import Template

from rallypoint.agent.core.model import RunOrder

RANK_MAX = 1 << 31
"""Beyond any rank: the end of a range that has none."""
CONSOLE = ""
"""In place of a path: the stream goes to the console as it is."""


class Streams(IntFlag):
    """Which of a worker's streams, as the command line numbers them."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class Ranks:
    """A range of workers."""

    first: int
    last: int
    """Included."""
    is_global: bool = False
    """Ranks of the round; else of the node."""

    def contains(self, order: RunOrder, local_rank: int) -> bool:
        """Tell whether a worker of this node is meant."""
        rank = order.first_rank + local_rank if self.is_global else local_rank
        return self.first <= rank <= self.last


ALL = Ranks(0, RANK_MAX)


@dataclass(frozen=True, slots=True)
class Choice:
    """Some workers and what is chosen for them; of several that fit, the last counts."""

    ranks: Ranks
    streams: Streams


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What the operator asked for."""

    log_dir: str = ""
    """Absolute; empty: a folder of the agent's own; os.devnull: no files at all."""
    redirects: tuple[Choice, ...] = ()
    """Streams that go to a file."""
    tee: tuple[Choice, ...] = ()
    """Streams that go to a file and, with a prefix, to the console."""
    shown_local: tuple[Ranks, ...] = ()
    """The console shows these workers only; empty: all."""
    shown_global: tuple[Ranks, ...] = ()
    """The same, by global rank; with both, a worker must be in both."""
    stdout_needles: tuple[bytes, ...] = ()
    """Lines of a tee'd stream that contain one of these go to the filtered file, too."""
    stderr_needles: tuple[bytes, ...] = ()
    prefix_template: str = ""
    """Of a line on the console; empty: `[<role><local rank>]:`."""


@dataclass(slots=True)
class Destinations:
    """Where the streams of a round's local workers go: the shape of torch's LogsDest."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """By local rank: a path, or CONSOLE."""
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """Streams that go to the console with a prefix: the same path as in `stdouts`; CONSOLE when
    there is no file; os.devnull counts as absent."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    """os.devnull: none."""
    filtered_stdout: str = ""
    """Empty: none."""
    filtered_stderr: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """Where one stream goes."""

    file: str = ""
    """Empty: to no file."""
    is_shown: bool = True
    """On the console."""
    prefix: bytes | None = None
    """Of each line there; None: it is passed on as it is."""
    filtered: str = ""
    """File that takes the lines with one of `needles`; empty: none."""
    needles: tuple[bytes, ...] = ()


def assign_destinations(spec: OutputSpec, order: RunOrder, folder: str | None) -> Destinations:
    """Return where the streams of all workers of a round go.

    Args:
        folder: of the round; None when there are to be no files.
    """
    found = Destinations()
    if folder is not None:
        found.filtered_stdout = os.path.join(folder, "filtered_stdout.log")
        found.filtered_stderr = os.path.join(folder, "filtered_stderr.log")
    for local_rank in range(order.local_world_size):
        own = None if folder is None else os.path.join(folder, str(local_rank))
        teed = _choose(spec.tee, order, local_rank)
        filed = teed | _choose(spec.redirects, order, local_rank)
        is_shown = _is_shown(spec, order, local_rank)
        for stream, name, targets, tees in (
            (Streams.OUT, "stdout.log", found.stdouts, found.tee_stdouts),
            (Streams.ERR, "stderr.log", found.stderrs, found.tee_stderrs),
        ):
            path = os.path.join(own, name) if own is not None and stream in filed else CONSOLE
            if stream in teed and is_shown:
                tees[local_rank] = path
            targets[local_rank] = path if is_shown or path != CONSOLE else os.devnull
        error_file = os.devnull if own is None else os.path.join(own, "error.json")
        found.error_files[local_rank] = error_file
    return found


def _choose(choices: Sequence[Choice], order: RunOrder, local_rank: int) -> Streams:
    for choice in reversed(choices):
        if choice.ranks.contains(order, local_rank):
            return choice.streams
    return Streams.NONE


def _is_shown(spec: OutputSpec, order: RunOrder, local_rank: int) -> bool:
    return all(
        not ranges or any(ranks.contains(order, local_rank) for ranks in ranges)
        for ranges in (spec.shown_local, spec.shown_global)
    )


def compute_routes(
    destinations: Destinations, spec: OutputSpec, order: RunOrder, local_rank: int, node: str
) -> tuple[Route, Route]:
    """Return the routes of one worker's standard output and standard error."""
    prefix = os.fsencode(compute_prefix(spec.prefix_template, order, local_rank, node))
    found = destinations
    streams = (
        (found.stdouts, found.tee_stdouts, found.filtered_stdout, spec.stdout_needles),
        (found.stderrs, found.tee_stderrs, found.filtered_stderr, spec.stderr_needles),
    )
    out, err = (
        _assign_route(targets[local_rank], tees.get(local_rank), prefix, filtered, needles)
        for targets, tees, filtered, needles in streams
    )
    return out, err


def _assign_route(
    target: str, tee: str | None, prefix: bytes, filtered: str, needles: tuple[bytes, ...]
) -> Route:
    file = "" if target in (CONSOLE, os.devnull) else target
    if tee is None or tee == os.devnull:
        return Route(file, is_shown=target == CONSOLE)
    has_filter = bool(filtered and needles)
    return Route(file, True, prefix, filtered if has_filter else "", needles if has_filter else ())


def compute_prefix(template: str, order: RunOrder, local_rank: int, node: str) -> str:
    """Return what stands before a worker's lines on the console.

    Args:
        template: may name ${role_name}, ${local_rank} and ${rank}, as torch's, and ${node},
            ${group_rank}, ${restart_count} and ${round}; anything else stays as it is.
    """
    return Template(template or "[${role_name}${local_rank}]:").safe_substitute(
        role_name=order.role,
        local_rank=local_rank,
        rank=order.first_rank + local_rank,
        node=node,
        group_rank=order.group_rank,
        restart_count=order.restart_count,
        round=order.number,
    )
