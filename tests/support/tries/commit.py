"""The commit under test, and what is drawn from it: each change tries new histories.

`make test COMMIT=<hash>` draws what that commit drew.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]


def find_commit() -> str:
    """Return the hash of the commit under test: `COMMIT`, or what is checked out.

    Where there is no git, it is `unknown`.
    """
    return os.environ.get("COMMIT") or _find_head()


@functools.cache
def _find_head() -> str:
    command = ["git", "-C", str(_ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def draw(subject: str, below: int, commit: str | None = None) -> int:
    """Return a number from 0 on and below a limit, the same whenever this commit is tested."""
    text = f"{commit or find_commit()} {subject}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % below


def choose_seeds(
    subject: str, count: int, *, after: int = 0, commit: str | None = None
) -> tuple[int, ...]:
    """Return seeds: a third that every commit tries, and fresh ones of this commit.

    Args:
        subject: What they are for. Other subjects have other fresh seeds.
        count: How many.
        after: The first of those that every commit tries.
        commit: Another commit than that under test.

    Returns:
        The fixed ones, then the fresh ones: a row somewhere from 1,000,000 on.
    """
    fixed = count // 3
    first = 1_000_000 + 1_000 * draw(f"seeds of {subject}", 998_000, commit)
    return (*range(after, after + fixed), *range(first, first + count - fixed))


def choose_marks(subject: str, at: int, parts: int, long: int) -> tuple[pytest.MarkDecorator, ...]:
    """Return the marks of an item of a long table, of which each tier runs a part.

    One part runs with `make test`, `long` more with `make test-long`, others with `make nightly`.
    Which items are in which part is drawn from the commit.

    Args:
        subject: What the table is about.
        at: The place of the item in the table, from 0 on.
        parts: How many parts there are, from 1 on.
        long: How many of them are long.
    """
    part = (at + draw(f"part of {subject}", parts)) % parts
    if part == 0:
        return ()
    return (pytest.mark.long if part <= long else pytest.mark.nightly,)


def choose_long(subject: str, at: int, parts: int) -> pytest.MarkDecorator:
    """Return the mark of an item of a table of which no part runs with `make test`.

    One of so many runs with `make test-long`, another one for each commit; the others are nightly.

    Args:
        subject: What the table is about.
        at: The place of the item in the table, from 0 on.
        parts: How many parts there are, from 1 on.
    """
    is_long = not choose_marks(subject, at, parts, 0)
    return pytest.mark.long if is_long else pytest.mark.nightly
