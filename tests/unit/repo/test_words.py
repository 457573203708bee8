"""The words of the project: names of log events, length of messages, phrases to avoid.

Events and messages are checked in all of the product. Prose is checked in the tests too (`PLAIN`).
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PRODUCT = (
    *("agent", "base", "benchmarks", "cli", "client", "elastic", "examples"),
    *("proto", "release", "server"),
)
PLAIN = (
    *("CONTRIBUTING.md", "CHANGELOG.md", "README.md", "SECURITY.md", "docs"),
    *PRODUCT,
    *("tests/docs", "tests/e2e", "tests/sim", "tests/support", "tests/unit"),
)
MESSAGE_CHARS_MAX = 120
"""Longest message to a person, without the values that it names."""

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
DRAFT_METHODS = frozenset({"changed", "emit"})
"""Methods of the core's draft whose second argument is an event for the log."""
EVENT = re.compile(r"[a-z]+(_[a-z]+)+")
IRREGULAR = frozenset(
    {
        "became",
        "began",
        "begun",
        "broken",
        "came",
        "fell",
        "found",
        "given",
        "gone",
        "kept",
        "left",
        "lost",
    }
    | {"forgotten", "made", "ran", "sent", "stuck", "told", "written"}
)
"""Words of events that are in the past tense although they do not end in -ed."""

SELECTED = frozenset({"audit", "unprotected", "unencrypted", "preloaded"})
"""Events that people select lines by: each is the one word that they look for."""

FORWARDED = {
    # Named in the core, and checked there: see `DRAFT_METHODS`.
    ("server/rallypoint/server/shell/announcements.py", "effect.reason"),
    # Named where a launch is resolved, before logs are configured: see `Note`.
    ("agent/rallypoint/agent/launch/notes.py", "note.event"),
}
"""Events that are logged elsewhere than where they are named."""

MESSAGE_CALLS = frozenset({"fail", "require", "silent_status"})
"""Functions besides exceptions whose string arguments are messages to people."""

BANNED = (
    r"(?:is|are|was|were|be|been) told",
    r"who is in\b",
    r"(?:no|every|some)body",
    r"whoever",
    r"of (?:its|their) own",
    r"anew",
    r"said",
    r"unheard",
    r"for want of",
    r"is none that",
    r"doings",
    r"feigned",
    r"go(?:es)? on",
    r"taken in",
    r"takes? in",
    r"wants? of",
    r"is to (?:be|do|have)",
    r"all that (?:is|was)",
    r"what is (?:left|there)",
)
"""Phrases that read like a translation. Say who does what, in the present tense."""
BANNED_PATTERN = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.IGNORECASE)


def find_files(names: tuple[str, ...], *suffixes: str) -> list[Path]:
    """Return the files with these suffixes below `names`, sorted: none that a tool has made."""
    roots = [REPOSITORY / name for name in names]
    assert all(root.exists() for root in roots), "what has moved would go unchecked"
    found = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
    return sorted(
        path
        for path in found
        if path.suffix in suffixes
        and not path.stem.endswith(("_pb2", "_pb2_grpc"))
        and "node_modules" not in path.parts
    )


def method_of(function: ast.expr) -> tuple[str, str]:
    """Return the object and the method of a call; of `a.b if c else a.d` those of the first."""
    if isinstance(function, ast.IfExp):
        return method_of(function.body)
    if not isinstance(function, ast.Attribute):
        return "", function.id if isinstance(function, ast.Name) else ""
    value = function.value
    name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    return name, function.attr


def find_events(path: Path) -> Iterator[tuple[int, ast.expr]]:
    """Yield the line and the event of every call that logs one, and of every note for the log."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        owner, method = method_of(call.func)
        if owner.strip("_") == "log" and method in LOG_METHODS and call.args:
            at = 0
        elif owner == "draft" and method in DRAFT_METHODS and len(call.args) > 1:
            at = 1
        elif not owner and method == "Note" and call.args:
            at = 0
        else:
            continue
        for event in values_of(call.args[at], tree):
            yield call.lineno, event


def values_of(event: ast.expr, tree: ast.Module) -> list[ast.expr]:
    """Return both branches of a choice, and the values that a file assigns to a variable."""
    if isinstance(event, ast.IfExp):
        return [event.body, event.orelse]
    if isinstance(event, ast.Name):
        assigned = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == event.id
        ]
        return [value for one in assigned for value in values_of(one, tree)] or [event]
    return [event]


def is_past_tense(event: str) -> bool:
    """Return whether one of the words of an event is in the past tense."""
    return any(word.endswith("ed") or word in IRREGULAR for word in event.split("_"))


def literal_length(node: ast.expr) -> int:
    """Return the number of characters of a string literal, without values; 0 for other nodes."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return len(node.value)
    if isinstance(node, ast.JoinedStr):
        return sum(literal_length(part) for part in node.values)
    return 0


def find_messages(path: Path) -> Iterator[ast.expr]:
    """Yield what may be a message to a person: arguments of exceptions, errors and help texts."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from node.exc.args
        elif isinstance(node, ast.Call):
            if method_of(node.func)[1] in MESSAGE_CALLS or method_of(node.func)[1] == "error":
                yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg == "help")


def find_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that people read: comments, docstrings, texts, documents."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        for number, line in enumerate(text.splitlines(), 1):
            if path.suffix == ".md" or line.lstrip().startswith("//"):
                yield number, line
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds and " " in token.string:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def test_log_events_are_constant_past_tense_facts() -> None:
    """Such as `round_sealed`: the fields carry what differs."""
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {ast.unparse(event)}"
        for path in find_files(PRODUCT, ".py")
        for line, event in find_events(path)
        if (str(path.relative_to(REPOSITORY)), ast.unparse(event)) not in FORWARDED
        if not (isinstance(event, ast.Constant) and event.value in SELECTED)
        if not isinstance(event, ast.Constant)
        or not EVENT.fullmatch(str(event.value))
        or not is_past_tense(str(event.value))
    ]

    assert [] == wrong


def test_messages_are_short() -> None:
    """What happened, then what to do, in one line."""
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{message.lineno}: {ast.unparse(message)}"
        for path in find_files(PRODUCT, ".py")
        for message in find_messages(path)
        if literal_length(message) > MESSAGE_CHARS_MAX
    ]

    assert [] == wrong


def test_prose_is_plain() -> None:
    """Comments, docstrings, messages and documents avoid the phrases in `BANNED`."""
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text.strip()}"
        for path in find_files(PLAIN, ".py", ".proto", ".md")
        if path != Path(__file__) and BANNED_PATTERN.search(path.read_text(encoding="utf-8"))
        for line, text in find_prose(path)
        if BANNED_PATTERN.search(text)
    ]

    assert [] == wrong


def test_banned_phrases_are_found() -> None:
    """The pattern finds whole words only."""
    assert BANNED_PATTERN.search("a node is told to stop")
    assert not BANNED_PATTERN.search("an untold story of renewal")
