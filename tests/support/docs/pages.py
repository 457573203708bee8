"""The commands that the documentation prints: fenced blocks, and the comment before each."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = (
    REPOSITORY / "README.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs" / "gallery").glob("*.md")),
)
_FENCE = re.compile(r"( *)```(\w*)$")
_COMMENT = re.compile(r" *<!-- (test|file|not run): (.+) -->$")
PLACES = ("in the repository", "in a clone", "fresh environment")
NEEDS = "needs "
"""Before the name of a package: the session runs where it is installed."""
AT_REST = "at rest"
"""The block runs once every process of the blocks before it has ended."""
WORDS = ("long", "nightly", "continued", AT_REST, *PLACES)
"""What `<!-- test: … -->` may say, separated by commas."""


@dataclass(frozen=True)
class Step:
    """A command, and the lines that it is shown to print."""

    command: str
    """As a reader pastes it, also over several lines."""
    output: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: str
    line: int
    language: str
    kind: str
    """`test`, `file`, `not run`, or empty without a comment."""
    words: str
    """The rest of the comment."""
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def options(self) -> set[str]:
        """Return what a `test` comment says."""
        return set(re.split(", *", self.words)) if self.kind == "test" else set()

    def steps(self) -> list[Step]:
        """Return the commands of a console block, in order, with the line breaks of the page."""
        steps: list[Step] = []
        is_open = False  # the last line ends with a backslash: the command continues
        for line in self.text.splitlines():
            if is_open:
                steps[-1] = Step(f"{steps[-1].command}\n{line}", ())
                is_open = line.endswith("\\")
            elif line.startswith("$ "):
                steps.append(Step(line.removeprefix("$ "), ()))
                is_open = line.endswith("\\")
            elif line.strip() not in ("", "…"):
                assert steps, f"{self.name}: output before a command"
                steps[-1] = Step(steps[-1].command, (*steps[-1].output, line))
        return steps


@dataclass(frozen=True)
class Session:
    """Blocks that share one shell, and the files that they need."""

    blocks: tuple[Block, ...]
    files: tuple[tuple[str, str], ...]

    @property
    def options(self) -> set[str]:
        return set().union(*(block.options for block in self.blocks))

    @property
    def missing(self) -> list[str]:
        """Return the packages that it needs and that are not installed here."""
        needed = (one.removeprefix(NEEDS) for one in self.options if one.startswith(NEEDS))
        return [name for name in needed if find_spec(name) is None]


def find_blocks(path: Path) -> Iterator[Block]:
    """Yield every fenced block of a page."""
    lines = path.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            number += 1
            continue
        end = lines.index(f"{opening[1]}```", number + 1)
        comment = _COMMENT.match(lines[number - 1]) if number else None
        kind, words = (comment[1], comment[2]) if comment else ("", "")
        text = textwrap.dedent("\n".join(lines[number + 1 : end]))
        page = f"{path.parent.name}/{path.name}" if path.parent.name == "gallery" else path.name
        yield Block(page, number + 1, opening[2], kind, words, text)
        number = end + 1


def find_sessions() -> list[Session]:
    """Return what is run, in order."""
    sessions: list[Session] = []
    for path in PAGES:
        files: list[tuple[str, str]] = []
        for block in find_blocks(path):
            if block.kind == "file":
                files.append((block.words, block.text))
            elif block.language != "console" or block.kind == "not run":
                continue
            elif "continued" in block.options:
                last = sessions.pop()
                sessions.append(Session((*last.blocks, block), last.files))
            else:
                sessions.append(Session((block,), tuple(files)))
    return sessions


def find_unrun() -> list[Block]:
    """Return the blocks that are only checked: commands, and whole scripts and units."""
    blocks = [block for path in PAGES for block in find_blocks(path)]
    return [block for block in blocks if block.kind == "not run"]
