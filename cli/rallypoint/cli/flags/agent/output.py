"""Where the output of the workers goes."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence

from rallypoint.agent.output.destinations import ALL, Choice, OutputSpec, Ranks, Streams
from rallypoint.agent.output.plugin import OURS, PluginSpec, list_logs_specs
from rallypoint.cli.flags import Parser, fail

PREFIX_ENV = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
_CHOICE = re.compile(r"(?P<kind>g?)(?P<ranks>[\d-]+):(?P<streams>[0-3])", re.ASCII)
_RANGE = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?", re.ASCII)


def add(parser: Parser) -> None:
    """Add the flags."""
    group = parser.add_argument_group(
        "output (STREAMS: 0 none, 1 stdout, 2 stderr, 3 both, for all workers; or by local rank, "
        "0:3,1-7:2, or by rank, g0:3)"
    )
    add = group.add_argument
    add("--log-dir", metavar="DIR", help="folder for what goes to files; /dev/null: no files")
    add(
        "-r",
        "--redirects",
        type=choices,
        default=(),
        metavar="STREAMS",
        help="streams that go to a file instead of the console (0)",
    )
    add(
        "-t",
        "--tee",
        type=choices,
        default=(),
        metavar="STREAMS",
        help="streams that go to a file and, line by line with a prefix, to the console (0)",
    )
    for name, parse, kind in (
        ("--local-ranks-filter", local_ranks, "local "),
        ("--ranks-filter", global_ranks, ""),
    ):
        help = f"the console shows the workers of these {kind}ranks only (all)"
        add(name, type=parse, default=(), metavar="0,8-15", help=help)
    for stream in ("stdout", "stderr"):
        add(
            f"--duplicate-{stream}-filters",
            type=needles,
            default=(),
            metavar="TEXT,…",
            help="tee'd lines with one of these go to a file of their own, too; ,, is a comma",
        )
    add(
        "--log-line-prefix-template",
        metavar="TEXT",
        help="before tee'd lines; may name ${role_name}, ${local_rank}, ${rank}, ${node}, "
        f"${{group_rank}}, ${{restart_count}}, ${{round}} (${PREFIX_ENV})",
    )
    add(
        "--logs-specs",
        metavar="NAME",
        help="plug-in that says where output goes: an entry point of torchrun.logs_specs (default)",
    )


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a plug-in that is not there and a folder that cannot take files; make a new one."""
    if args.logs_specs not in (None, OURS):
        _check_plugin(args, prog)
    if not args.log_dir or args.log_dir == os.devnull:
        return
    try:
        os.makedirs(args.log_dir, exist_ok=True)
    except OSError as error:
        fail(prog, f"--log-dir {args.log_dir}: {error.strerror}")
    if not os.access(args.log_dir, os.W_OK | os.X_OK):
        fail(prog, f"--log-dir {args.log_dir}: not writable")


def _check_plugin(args: argparse.Namespace, prog: str) -> None:
    # What another interpreter has installed the plug-in's own process will say.
    if os.environ.get("PYTHON_EXEC", sys.executable) == sys.executable:
        known = list_logs_specs()
        if args.logs_specs not in known:
            fail(
                prog,
                f"--logs-specs {args.logs_specs}: not installed; installed: {', '.join(known)}",
            )
    chosen = (choice.ranks for choice in (*args.redirects, *args.tee))
    if args.ranks_filter or any(ranks.is_global for ranks in chosen):
        fail(prog, f"--logs-specs {args.logs_specs}: a plug-in chooses workers by local rank only")


def parse_plugin(args: argparse.Namespace, workers: int) -> PluginSpec | None:
    """Return what a plug-in is made with on a node of so many workers; None: it is ours."""
    if args.logs_specs in (None, OURS):
        return None
    # Of a rank that no worker here has, one is kept: a filter that fits nobody shows nobody.
    ranks = {
        rank
        for few in args.local_ranks_filter
        for rank in range(few.first, min(few.last, max(few.first, workers)) + 1)
    }
    return PluginSpec(
        name=args.logs_specs,
        python=os.environ.get("PYTHON_EXEC") or sys.executable,
        log_dir=args.log_dir,
        redirects=_by_rank(args.redirects, workers),
        tee=_by_rank(args.tee, workers),
        local_ranks=tuple(sorted(ranks)) if ranks else None,
    )


def _by_rank(choices: Sequence[Choice], workers: int) -> int | dict[int, int]:
    """Return the number of the streams of all workers, or of each that is chosen."""
    if not choices or choices[0].ranks == ALL:
        return int(choices[0].streams) if choices else 0
    return {
        rank: int(choice.streams)
        for choice in choices
        for rank in range(workers)
        if choice.ranks.first <= rank <= choice.ranks.last
    }


def parse_spec(args: argparse.Namespace) -> OutputSpec:
    """Return what the flags ask for."""
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


def choices(text: str) -> tuple[Choice, ...]:
    """Parse which streams of which workers are meant."""
    if re.fullmatch("[0-3]", text):
        return (Choice(ALL, Streams(int(text))),)
    found = [_CHOICE.fullmatch(part) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 0, 1, 2 or 3 nor a list such as 0:3,1-7:2 or g0:3"
        )
    return tuple(
        Choice(_range(match["ranks"], match["kind"]), Streams(int(match["streams"])))
        for match in found
        if match
    )


def local_ranks(text: str) -> tuple[Ranks, ...]:
    """Parse local ranks and ranges of them, separated by commas; nothing means all."""
    return tuple(_range(part.strip(), "") for part in text.split(",") if text.strip())


def global_ranks(text: str) -> tuple[Ranks, ...]:
    """Parse ranks of the round, in the same way."""
    return tuple(_range(part.strip(), "g") for part in text.split(",") if text.strip())


def _range(text: str, kind: str) -> Ranks:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rank nor a range such as 0-7")
    first = int(match["first"])
    last = int(match["last"] or first)
    if last < first:
        raise argparse.ArgumentTypeError(f"{text!r} is a range that is empty")
    return Ranks(first, last, is_global=kind == "g")


def needles(text: str) -> tuple[bytes, ...]:
    """Parse what to look for, separated by commas; two of them are a comma."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(os.fsencode(part.replace("\0", ",")) for part in parts if part)
