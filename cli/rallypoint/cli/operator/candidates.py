"""`rallypoint __complete`: what may follow on a command line, with the names of jobs and nodes.

The scripts of the shells, from `completion`, call it at each Tab. It prints a line that says what
follows, `words` or `files`, and a line for each candidate: a word, a tab, and what it means. A
failure prints nothing: a shell would show it in the middle of a line. A coordinator that does not
answer at once, or refuses, is the same as one without jobs: a person waits at the Tab key.

    __complete bash BREAKS LINE     the line up to the cursor, and the characters that end a word
    __complete zsh|fish WORD…       the words up to the cursor; the last may be empty
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.printable import to_printable_line
from rallypoint.cli.flags.argv import BadArgument
from rallypoint.cli.flags.flag import Flag, Operand
from rallypoint.cli.flags.parser import Parser
from rallypoint.cli.operator.table import COMMANDS

TEXT_CHARS_MAX = 60
"""A longer explanation would fill the terminal."""
CALL_S_MAX = 1.0
"""Longest connection to a coordinator, and longest call after it."""
NAMES_MAX = 200
"""More names help less than a few more letters."""
_UNSAFE_IN_BASH = " \t\"'\\$`!&|;<>()[]{}*?#~"
_CURSOR = "\0"
"""A word that no one types, in place of the one at the cursor."""


class Wanted(Struct, frozen=True):
    """What may stand at the cursor."""

    kind: str = ""
    """The placeholder of a value, as --help shows it: "JOB", "FILE", …; empty: see `words`."""
    begun: str = ""
    """What is typed of it."""
    prefix: str = ""
    """What stands before it in the same word: `--context=`."""
    words: Mapping[str, str] = {}
    """Candidates, and what each means."""
    given: Mapping[str, Sequence[str]] = {}
    """Values on the command line, by the name of the parameter."""


def main(words: Sequence[str], menu: Mapping[str, str]) -> int:
    """Print the candidates; return the exit code.

    Args:
        words: those after `__complete`.
        menu: every command, also those that are no operator's, and what each does.
    """
    os.environ["GRPC_VERBOSITY"] = "NONE"
    shell, *rest = words or ("",)
    is_bash, breaks = shell == "bash", ""
    if not shell or (is_bash and len(rest) != 2):
        return EXIT_USAGE
    if is_bash:
        breaks, rest = rest[0], split_line(rest[1])
    wanted = find(rest or [""], menu)
    if wanted.kind == "FILE":
        print("files")
        return 0
    print("words")
    found = wanted.words or _find_names(wanted)
    for value, text in sorted(found.items()):
        if not value.startswith(wanted.begun) or not value.isprintable():
            continue
        shown = wanted.prefix + value
        if is_bash:
            print(_fit_to_bash(shown, wanted.prefix + wanted.begun, breaks))
        else:
            print(f"{shown}\t{to_printable_line(text)[:TEXT_CHARS_MAX]}")
    return 0


# --- What may stand at the cursor ---


def find(words: Sequence[str], menu: Mapping[str, str]) -> Wanted:
    """Return what may stand at the cursor; the last word is typed so far."""
    if len(words) == 1 and not words[0].startswith("-"):
        return Wanted(begun=words[0], words=menu)  # the most common: nothing slow is imported
    from rallypoint.cli.operator.options import COMMON, Command, split_options

    moved, rest = split_options(words[:-1])
    name, *after = *rest, words[-1]
    if not after:
        takes = {name for flag in COMMON.flags if not flag.is_switch for name in flag.names}
        if name.startswith("-") or (moved and moved[-1] in takes):
            return _find_in("", Parser("", "", (COMMON,)), [*moved, name])
        return Wanted(begun=name, words=menu)
    if name not in COMMANDS:
        return Wanted("FILE" if name in menu else "")
    from rallypoint.cli.operator.app import find as find_command

    found = find_command(name)
    if not isinstance(found, Command):
        part, *after = after
        if not after:
            return Wanted(begun=part, words={part: one.line for part, one in found.items()})
        if part not in found:
            return Wanted()
        found = found[part]
    return _find_in(name, found.parser(name), [*moved, *after])


def _find_in(command: str, parser: Parser, words: Sequence[str]) -> Wanted:
    """Return what may stand at the cursor among the words that a command's parser reads."""
    *before, begun = words
    try:
        line = parser.split([*before, _CURSOR])
    except BadArgument:
        return Wanted()
    pairs: list[tuple[Flag | Operand, str]] = [(one.flag, one.value or "") for one in line.flags]
    operands = list(parser.operands)
    for word in line.program if operands else ():
        pairs.append((operands[0], word))
        if not operands[0].is_repeatable and not (operands := operands[1:]):
            break
    given = dict[str, list[str]]()
    for one, value in pairs:
        given.setdefault(one.dest, []).append(value)
    wanted = next((one for one, value in pairs if value == _CURSOR), None)
    prefix, known = "", parser.known()
    if begun.startswith("-") and "--" not in before and not isinstance(wanted, Flag):
        name, equals, value = begun.partition("=")
        if not equals or name not in known:
            texts = {
                name: flag.help.partition(" [")[0]
                for name, flag in known.items()
                if name.startswith("--") and not flag.prints
            }
            return Wanted(begun=begun, words=texts)
        wanted, prefix, begun = known[name], f"{name}=", value
    if wanted is None:
        return Wanted()
    shown = wanted.metavar if isinstance(wanted, Flag) else wanted.name
    if "|" in shown and shown == shown.lower():
        return Wanted(begun=begun, prefix=prefix, words=dict.fromkeys(shown.split("|"), ""))
    return Wanted(_name_kind(shown, wanted.dest, command), begun, prefix, given=given)


def _name_kind(placeholder: str, dest: str, command: str) -> str:
    """Return a key of `_FINDERS`, or FILE; empty: any other value."""
    if placeholder == "NAME" and "context" in (command, dest):
        return "CONTEXT"
    if placeholder == "PREFIX" and command == "jobs":  # others are of keys, which only workers read
        return "JOB"
    return placeholder if placeholder == "FILE" or placeholder in _FINDERS else ""


# --- Names ---


def _find_names(wanted: Wanted) -> dict[str, str]:
    """Return the names of a kind, and what each is; empty if they cannot be found soon."""
    if not wanted.kind:
        return {}
    from rallypoint.cli.operator.common import AccessOptions, Common
    from rallypoint.cli.operator.failures import CommandFailed
    from rallypoint.cli.operator.invocation import Invocation
    from rallypoint.client.errors import RallypointError

    given: dict[str, Any] = {name: values[-1] for name, values in wanted.given.items()}
    names = ("coordinator", "context", *AccessOptions.__struct_fields__[1:])
    texts = {name: given.get(name, "") for name in names}
    invocation = Invocation(Common(timeout_s=CALL_S_MAX, tls="tls" in given, **texts))
    try:
        return dict(islice(_FINDERS[wanted.kind](invocation, wanted), NAMES_MAX))
    except (CommandFailed, RallypointError, OSError, ValueError):
        return {}
    finally:
        invocation.close()


def _find_jobs(invocation: Any, wanted: Wanted) -> Iterator[tuple[str, str]]:
    from rallypoint.cli.operator.views.words import describe_state

    for job in invocation.client.list_jobs(prefix=wanted.begun, page_size=NAMES_MAX):
        yield job.job_id, describe_state(job.phase, job.outcome)


def _find_nodes(invocation: Any, wanted: Wanted) -> Iterator[tuple[str, str]]:
    for job_id in wanted.given.get("job", ()):
        for node in invocation.client.list_nodes(job_id):
            if node.name not in wanted.given.get("node", ()):
                yield node.name, "spare" if node.spare else node.address


def _find_barriers(invocation: Any, wanted: Wanted) -> Iterator[tuple[str, str]]:
    for job_id in wanted.given.get("job", ()):
        for one in invocation.client.list_barriers(job_id):
            yield one.name, f"{one.arrived_count} of {one.expected_count} have arrived"


def _find_contexts(invocation: Any, wanted: Wanted) -> Iterator[tuple[str, str]]:
    from rallypoint.cli.operator.contexts import contexts_path, read_contexts

    for name, context in read_contexts(contexts_path(os.environ)).contexts.items():
        yield name, context.coordinator


def _find_kinds(invocation: Any, wanted: Wanted) -> Iterator[tuple[str, str]]:
    from rallypoint.v1.event_service_pb2 import EventKind

    for name in EventKind.keys()[1:]:
        yield name.removeprefix("EVENT_KIND_").lower().replace("_", "-"), ""


_FINDERS = {
    "JOB": _find_jobs,
    "NODE": _find_nodes,
    "BARRIER": _find_barriers,
    "CONTEXT": _find_contexts,
    "KIND": _find_kinds,
}
"""By placeholder."""


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
