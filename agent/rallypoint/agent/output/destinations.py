"""Assigns destinations to the output of each worker. Pure: computes paths from flags and round.

A stream goes to up to three places: a file, the console, and the file of filtered lines.
`Destinations` holds the paths for all workers of a round. It has the shape of torch's `LogsDest`,
because a plug-in for logs may return one. A `Route` holds the destinations of one stream.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntFlag
from string import Template

from msgspec import Struct, field

from rallypoint.agent.core.desired import RunOrder

RANK_MAX = 1 << 31
"""Beyond any rank: the end of an open range."""
CONSOLE = ""
"""Instead of a path: the stream goes to the console unchanged."""


class Streams(IntFlag):
    """Streams of a worker, with the numbers of the command line."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


class Ranks(Struct, frozen=True):
    """A range of ranks."""

    first: int
    last: int
    """Included."""
    is_global: bool = False
    """True: ranks of the round; false: local ranks."""

    def contains(self, order: RunOrder, local_rank: int) -> bool:
        """Return whether a worker of this node is in the range."""
        rank = order.assignment.first_rank + local_rank if self.is_global else local_rank
        return self.first <= rank <= self.last


ALL = Ranks(0, RANK_MAX)


class Choice(Struct, frozen=True):
    """The streams that are chosen for some workers. The last choice for a worker counts."""

    ranks: Ranks
    streams: Streams


class OutputSpec(Struct, frozen=True):
    """The output options of the flags."""

    log_dir: str = ""
    """Absolute; empty: a temporary folder; os.devnull: no files."""
    redirects: tuple[Choice, ...] = ()
    """Streams that go to a file."""
    tee: tuple[Choice, ...] = ()
    """Streams that go to a file and, with a prefix, to the console."""
    shown_local: tuple[Ranks, ...] = ()
    """The console shows only these workers; empty: all."""
    shown_global: tuple[Ranks, ...] = ()
    """The same, by global rank; with both, a worker must be in both."""
    stdout_needles: tuple[bytes, ...] = ()
    """Lines of a tee'd stream that contain one of these go to the filtered file too."""
    stderr_needles: tuple[bytes, ...] = ()
    prefix_template: str = ""
    """Prefix of a line on the console; empty: `[<role><local rank>]:`."""


class Destinations(Struct):
    """Where the streams of a round's local workers go, in the shape of torch's LogsDest."""

    stdouts: dict[int, str] = field(default_factory=dict)
    """By local rank: a path, or CONSOLE."""
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    """Streams that also go to the console, with a prefix: the path in `stdouts`, or CONSOLE without
    a file; os.devnull counts as absent."""
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    """os.devnull: none."""
    filtered_stdout: str = ""
    """Empty: none."""
    filtered_stderr: str = ""


class Route(Struct, frozen=True):
    """Where one stream goes."""

    file: str = ""
    """Empty: none."""
    is_shown: bool = True
    """It goes to the console."""
    prefix: bytes | None = None
    """Prefix of each line on the console; None: the stream goes there unchanged."""
    filtered: str = ""
    """File for the lines that contain one of `needles`; empty: none."""
    needles: tuple[bytes, ...] = ()


def assign_destinations(spec: OutputSpec, order: RunOrder, folder: str | None) -> Destinations:
    """Return where the streams of all workers of a round go.

    Args:
        folder: of the round; None: no files.
    """
    destinations = Destinations()
    if folder is not None:
        destinations.filtered_stdout = os.path.join(folder, "filtered_stdout.log")
        destinations.filtered_stderr = os.path.join(folder, "filtered_stderr.log")
    for local_rank in range(order.assignment.local_world_size):
        own = None if folder is None else os.path.join(folder, str(local_rank))
        teed = _choose(spec.tee, order, local_rank)
        filed = teed | _choose(spec.redirects, order, local_rank)
        is_shown = _is_shown(spec, order, local_rank)
        for stream, name, targets, tees in (
            (Streams.OUT, "stdout.log", destinations.stdouts, destinations.tee_stdouts),
            (Streams.ERR, "stderr.log", destinations.stderrs, destinations.tee_stderrs),
        ):
            path = os.path.join(own, name) if own is not None and stream in filed else CONSOLE
            if stream in teed and is_shown:
                tees[local_rank] = path
            targets[local_rank] = path if is_shown or path != CONSOLE else os.devnull
        error_file = os.devnull if own is None else os.path.join(own, "error.json")
        destinations.error_files[local_rank] = error_file
    return destinations


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
    streams = (
        (
            destinations.stdouts,
            destinations.tee_stdouts,
            destinations.filtered_stdout,
            spec.stdout_needles,
        ),
        (
            destinations.stderrs,
            destinations.tee_stderrs,
            destinations.filtered_stderr,
            spec.stderr_needles,
        ),
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


def filtered_files(destinations: Destinations, spec: OutputSpec) -> tuple[str, ...]:
    """Return the files for filtered lines that the flags ask for."""
    pairs = (
        (destinations.filtered_stdout, spec.stdout_needles),
        (destinations.filtered_stderr, spec.stderr_needles),
    )
    return tuple(path for path, needles in pairs if needles and path not in (CONSOLE, os.devnull))


def compute_prefix(template: str, order: RunOrder, local_rank: int, node: str) -> str:
    """Return the prefix of a worker's lines on the console.

    Args:
        template: may use torch's ${role_name}, ${local_rank} and ${rank}, and also ${node},
            ${group_rank}, ${restart_count} and ${round}; any other text is kept.
    """
    return Template(template or "[${role_name}${local_rank}]:").safe_substitute(
        role_name=order.assignment.role,
        local_rank=local_rank,
        rank=order.assignment.first_rank + local_rank,
        node=node,
        group_rank=order.assignment.group_rank,
        restart_count=order.header.restart_count,
        round=order.number,
    )
