"""The text of --help: the basic flags and examples; with --help-all, every flag."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from rallypoint.cli.flags.flag import Flag, Group, Usage

WIDTH_MIN, WIDTH_MAX = 72, 110
"""Columns. Longer lines are hard to read, shorter ones leave no room beside the names."""
NAME_WIDTH = 28
"""Columns for a flag's name; a longer name has its text on the next line."""
_NO_BREAK = "\xa0"
"""A space that does not break a line."""


def terminal_width() -> int:
    """Return the number of columns to use."""
    return max(WIDTH_MIN, min(WIDTH_MAX, shutil.get_terminal_size().columns))


def format_help(usage: Usage, width: int, *, is_whole: bool) -> str:
    """Return the help text of a command.

    Args:
        usage: the command.
        width: columns.
        is_whole: every flag; else the basic ones only, if the command has any.
    """
    known = {flag.name: flag for flag in usage.flags()}
    basics = tuple(known[name] for name in usage.basics)
    program = " script [args ...]" if usage.takes_program else ""
    words = "".join(f" {operand.shown}" for operand in usage.operands)
    usage_line = f"Usage: {usage.prog} [flags]{words}{program}"
    paragraphs = [_wrap(one, width) for one in usage.summary.split("\n\n")]
    lines = [line for one in paragraphs for line in (*one, "")] + [usage_line]
    lines += [""] if usage.operands else []
    for operand in usage.operands:
        lines += _entry_lines(operand.shown, operand.help, width)
    if basics:
        lines += _group_lines(Group("Basic flags", basics), width)
    if usage.takes_program:
        lines += _entry_lines("script [args ...]", "what every worker runs", width)
    lines += ["", "Examples:"] if usage.examples else []
    for meaning, words in usage.examples:
        lines += [f"  # {meaning}", f"  {usage.prog} {words}"]
    if basics and not is_whole:
        return "\n".join([*lines, "", f"All flags: {usage.prog} --help-all"])
    for group in usage.groups:
        others = tuple(flag for flag in group.flags if flag not in basics)
        lines += _group_lines(Group(group.title, others, group.note), width) if others else []
    for note in usage.notes:
        lines += ["", *_wrap(note, width)]
    return "\n".join(lines)


def _group_lines(group: Group, width: int) -> list[str]:
    lines = ["", f"{group.title}:"]
    if group.note:
        lines += [f"  {line}" for line in _wrap(group.note, width - 2)]
    for flag in group.flags:
        lines += _entry_lines(describe_names(flag), describe(flag), width)
    return lines


def _entry_lines(name: str, text: str, width: int) -> Iterator[str]:
    """Yield a name with its text beside it."""
    indent = " " * (NAME_WIDTH + 4)
    head = f"  {name}"
    wrapped = _wrap(text, width - len(indent))
    if len(head) > NAME_WIDTH + 2:
        yield head
        head = ""
    yield f"{head:{len(indent)}}{wrapped[0]}".replace(_NO_BREAK, " ")
    yield from (f"{indent}{line}".replace(_NO_BREAK, " ") for line in wrapped[1:])


def _wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text; a flag is not split."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def describe_names(flag: Flag) -> str:
    """Return the names and the placeholder of the value: `-r, --redirects STREAMS`."""
    return f"{', '.join(flag.names)} {flag.metavar}".rstrip()


def describe(flag: Flag) -> str:
    """Return the flag's effect, with its default in brackets."""
    pairs = (("default", flag.default_text), ("torchrun", flag.torchrun))
    parts = [f"{name}:{_NO_BREAK}{text}" for name, text in pairs if text]
    return f"{flag.help} [{'; '.join(parts)}]" if parts else flag.help
