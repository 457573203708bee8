"""Where the output of the workers goes."""

from __future__ import annotations

import argparse
import os
import re

from rallypoint.agent.destinations import ALL, Choice, OutputSpec, Ranks, Streams
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


def check(args: argparse.Namespace, prog: str) -> None:
    """Refuse a folder that cannot take files, and make one that is not there."""
    if not args.log_dir or args.log_dir == os.devnull:
        return
    try:
        os.makedirs(args.log_dir, exist_ok=True)
    except OSError as error:
        fail(prog, f"--log-dir {args.log_dir}: {error.strerror}")
    if not os.access(args.log_dir, os.W_OK | os.X_OK):
        fail(prog, f"--log-dir {args.log_dir}: not writable")


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
