"""The destinations of the workers' output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence

from rallypoint.agent.output.destinations import ALL, Choice, OutputSpec, Ranks, Streams
from rallypoint.agent.round.environ import find_python
from rallypoint.agent.torchelastic.logs_plugin import OURS, PluginSpec, list_logs_specs
from rallypoint.base.values import BadValue
from rallypoint.cli.flags.flag import Flag, Group, Values
from rallypoint.cli.flags.parser import fail

PREFIX_ENV = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
# Text, not a compiled pattern: `re` compiles it when it is first used, not at import.
_CHOICE = r"(?P<kind>g?)(?P<ranks>[\d-]+):(?P<streams>[0-3])"
_RANGE = r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?"


def check(args: Values) -> None:
    """Reject a missing plug-in and a folder that is not writable; create a missing folder."""
    if args.logs_specs not in (None, OURS):
        _check_plugin(args)
    if not args.log_dir or args.log_dir == os.devnull:
        return
    try:
        os.makedirs(args.log_dir, exist_ok=True)
    except OSError as error:
        fail(args.prog, f"--log-dir {args.log_dir}: {error.strerror}")
    if not os.access(args.log_dir, os.W_OK | os.X_OK):
        fail(args.prog, f"--log-dir {args.log_dir}: not writable")


def _check_plugin(args: Values) -> None:
    # The plug-in's own process checks what another interpreter has installed.
    if os.environ.get("PYTHON_EXEC", sys.executable) == sys.executable:
        known = list_logs_specs()
        if args.logs_specs not in known:
            installed = ", ".join(known)
            fail(args.prog, f"--logs-specs {args.logs_specs}: not installed; known: {installed}")
    chosen = (choice.ranks for choice in (*args.redirects, *args.tee))
    if args.ranks_filter or any(ranks.is_global for ranks in chosen):
        fail(
            args.prog,
            f"--logs-specs {args.logs_specs}: a plug-in chooses workers by local rank only",
        )


def parse_plugin(args: Values, workers: int) -> PluginSpec | None:
    """Return the arguments of a plug-in on a node with this many workers, or None without one."""
    if args.logs_specs in (None, OURS):
        return None
    # Keep one rank that no worker here has: an empty filter would show every worker.
    ranks = {
        rank
        for span in args.local_ranks_filter
        for rank in range(span.first, min(span.last, max(span.first, workers)) + 1)
    }
    return PluginSpec(
        name=args.logs_specs,
        python=find_python(os.environ),
        log_dir=args.log_dir,
        redirects=_by_rank(args.redirects, workers),
        tee=_by_rank(args.tee, workers),
        local_ranks=tuple(sorted(ranks)) if ranks else None,
    )


def _by_rank(choices: Sequence[Choice], workers: int) -> int | dict[int, int]:
    """Return the streams of all workers as one number, or those of each chosen worker."""
    if not choices or choices[0].ranks == ALL:
        return int(choices[0].streams) if choices else 0
    return {
        rank: int(choice.streams)
        for choice in choices
        for rank in range(workers)
        if choice.ranks.first <= rank <= choice.ranks.last
    }


def parse_spec(args: Values) -> OutputSpec:
    """Return the output options."""
    log_dir = args.log_dir or ""
    template = args.log_line_prefix_template
    return OutputSpec(
        log_dir=os.path.abspath(log_dir) if log_dir else "",
        redirects=args.redirects,
        tee=args.tee,
        shown_local=args.local_ranks_filter,
        shown_global=args.ranks_filter,
        stdout_needles=args.duplicate_stdout_filters,
        stderr_needles=args.duplicate_stderr_filters,
        prefix_template=os.environ.get(PREFIX_ENV, "") if template is None else template,
    )


def idle_filters(args: Values) -> tuple[str, ...]:
    """Return the flags that filter lines of a stream that no worker has tee'd."""
    if args.logs_specs not in (None, OURS):
        return ()  # the plug-in decides what is tee'd
    pairs = (("stdout", Streams.OUT), ("stderr", Streams.ERR))
    return tuple(
        f"--duplicate-{name}-filters"
        for name, stream in pairs
        if getattr(args, f"duplicate_{name}_filters")
        and not any(stream in choice.streams for choice in args.tee)
    )


def stream_choices(text: str) -> tuple[Choice, ...]:
    """Parse STREAMS: which streams of which workers."""
    if re.fullmatch("[0-3]", text):
        return (Choice(ALL, Streams(int(text))),)
    matches = [re.fullmatch(_CHOICE, part, flags=re.ASCII) for part in text.split(",")]
    if not all(matches):
        raise BadValue(f"{text!r} is neither 0, 1, 2 or 3 nor a list such as 0:3,1-7:2 or g0:3")
    return tuple(
        Choice(_range(match["ranks"], match["kind"]), Streams(int(match["streams"])))
        for match in matches
        if match
    )


def local_ranks(text: str) -> tuple[Ranks, ...]:
    """Parse local ranks and ranges of them, separated by commas; empty: all."""
    return tuple(_range(part.strip(), "") for part in text.split(",") if text.strip())


def global_ranks(text: str) -> tuple[Ranks, ...]:
    """Parse global ranks and ranges of them, separated by commas; empty: all."""
    return tuple(_range(part.strip(), "g") for part in text.split(",") if text.strip())


def _range(text: str, kind: str) -> Ranks:
    match = re.fullmatch(_RANGE, text, flags=re.ASCII)
    if match is None:
        raise BadValue(f"{text!r} is neither a rank nor a range such as 0-7")
    first = int(match["first"])
    last = int(match["last"] or first)
    if last < first:
        raise BadValue(f"{text!r} is an empty range")
    return Ranks(first, last, is_global=kind == "g")


def needles(text: str) -> tuple[bytes, ...]:
    """Parse texts to look for, separated by commas; two commas stand for one."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(os.fsencode(part.replace("\0", ",")) for part in parts if part)


GROUPS = (
    Group(
        "Output",
        (
            Flag(
                names=("--log-dir",),
                parse=str,
                metavar="DIR",
                help="folder for output files; /dev/null: no files",
                default_text="a temporary folder; empty files are removed at exit",
            ),
            Flag(
                names=("-r", "--redirects"),
                parse=stream_choices,
                metavar="STREAMS",
                default=(),
                default_text="0",
                help="streams that go to a file instead of the console",
            ),
            Flag(
                names=("-t", "--tee"),
                parse=stream_choices,
                metavar="STREAMS",
                default=(),
                default_text="0",
                help="streams that go to a file and, with a prefix on each line, to the console",
            ),
            Flag(
                names=("--local-ranks-filter",),
                parse=local_ranks,
                metavar="0,8-15",
                default=(),
                default_text="all",
                help="show only workers with these local ranks on the console",
            ),
            Flag(
                names=("--ranks-filter",),
                parse=global_ranks,
                metavar="0,8-15",
                default=(),
                default_text="all",
                help="show only workers with these ranks on the console",
            ),
            *(
                Flag(
                    names=(f"--duplicate-{stream}-filters",),
                    parse=needles,
                    metavar="TEXT,…",
                    default=(),
                    help=f"copy tee'd lines of {stream} that contain a TEXT to another file; two "
                    "commas stand for one",
                )
                for stream in ("stdout", "stderr")
            ),
            Flag(
                names=("--log-line-prefix-template",),
                parse=str,
                metavar="TEXT",
                help="prefix of tee'd lines; knows ${role_name}, ${local_rank}, ${rank}, "
                "${node}, ${group_rank}, ${restart_count}, ${round}",
                default_text=f"[${{role_name}}${{local_rank}}]:, or ${PREFIX_ENV}",
            ),
            Flag(
                names=("--logs-specs",),
                parse=str,
                metavar="NAME",
                help="plug-in that assigns the destinations of output: an entry point of "
                "torchrun.logs_specs",
                default_text="default",
            ),
        ),
        "STREAMS is 0 none, 1 stdout, 2 stderr or 3 both: for all workers, or by local rank "
        "(0:3,1-7:2), or by rank (g0:3).",
    ),
)
