"""`rallypoint __complete`: what the scripts of the shells call at each Tab.

It prints a line that says what follows, `words` or `files`, and a line for each candidate: a word,
a tab, and what it means. A failure prints nothing: a shell would show it in the middle of a line.

    __complete bash BREAKS LINE     the line up to the cursor, and the characters that end a word
    __complete zsh|fish WORD…       the words up to the cursor; the last may be empty
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from rallypoint.base.printable import to_printable_line
from rallypoint.cli.flags.parser import Parser
from rallypoint.cli.operator.completion.line import Kind, Wanted, find_wanted
from rallypoint.cli.operator.table import COMMANDS

BASH = "bash"
TEXT_CHARS_MAX = 60
"""A longer explanation would fill the terminal."""
_UNSAFE_IN_BASH = " \t\"'\\$`!&|;<>()[]{}*?#~"


def main(words: Sequence[str], menu: Mapping[str, str]) -> int:
    """Print the candidates; return the exit code.

    Args:
        words: those after `__complete`.
        menu: every command, also those that are no operator's, and what each does.
    """
    os.environ["GRPC_VERBOSITY"] = "NONE"
    if not words:
        return 2
    shell, *rest = words
    breaks = ""
    if shell == BASH:
        if len(rest) != 2:
            return 2
        breaks, rest = rest[0], split_line(rest[1])
    wanted = find(rest or [""], menu)
    if wanted.kind is Kind.FILES:
        print("files")
        return 0
    print("words")
    for value, text in sorted(_candidates(wanted).items()):
        shown = wanted.prefix + value
        if shell == BASH:
            print(_fit_to_bash(shown, wanted.prefix + wanted.begun, breaks))
        else:
            print(f"{shown}\t{to_printable_line(text)[:TEXT_CHARS_MAX]}")
    return 0


def find(words: Sequence[str], menu: Mapping[str, str]) -> Wanted:
    """Return what may stand at the cursor; the last word is typed so far."""
    if len(words) == 1 and not words[0].startswith("-"):
        return Wanted(Kind.WORDS, words[0], words=menu)  # the most common
    from rallypoint.cli.operator.app import find as find_command
    from rallypoint.cli.operator.options import COMMON, Command, split_options

    moved, rest = split_options(words[:-1])
    rest = [*rest, words[-1]]
    if len(rest) == 1:
        takes = {name for flag in COMMON.flags if not flag.is_switch for name in flag.names}
        if rest[0].startswith("-") or (moved and moved[-1] in takes):
            return find_wanted((), Parser("", "", (COMMON,)), [*moved, rest[0]])
        return Wanted(Kind.WORDS, rest[0], words=menu)
    name, *after = rest
    if name not in COMMANDS:
        return Wanted(Kind.FILES if name in menu else Kind.NOTHING)
    found = find_command(name)
    if isinstance(found, Command):
        return find_wanted((name,), found.parser(name), [*moved, *after])
    if len(after) == 1:
        return Wanted(Kind.WORDS, after[0], words={part: one.line for part, one in found.items()})
    if after[0] not in found:
        return Wanted(Kind.NOTHING)
    path = (name, after[0])
    return find_wanted(path, found[after[0]].parser(" ".join(path)), [*moved, *after[1:]])


def _candidates(wanted: Wanted) -> dict[str, str]:
    found = dict(wanted.words)
    if wanted.kind not in (Kind.WORDS, Kind.NOTHING):
        from rallypoint.cli.operator.completion.names import find_names

        found = find_names(wanted)
    return {
        value: text
        for value, text in found.items()
        if value.startswith(wanted.begun) and value.isprintable()
    }


# --- Bash ---


def split_line(line: str) -> list[str]:
    """Return the words of a line of bash after the name of the command; the last may be empty."""
    for closing in ("", '"', "'", "\\"):  # what is open at the cursor
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        is_new = not closing and line[-1:].isspace() and line[-2:-1] != "\\"
        return [*words[1:], ""] if is_new else words[1:]
    return [""]


def _fit_to_bash(value: str, typed: str, breaks: str) -> str:
    """Return what bash inserts: it replaces only what follows the last of its break characters."""
    ends = [at + 1 for at, char in enumerate(typed) if char in breaks]
    left = value[max(ends) :] if ends and value.startswith(typed[: max(ends)]) else value
    return "".join(f"\\{char}" if char in _UNSAFE_IN_BASH else char for char in left)
