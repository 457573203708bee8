"""What differs between the results of a case with torch's API and with ours, and what may."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

ABSENT = "(absent)"


@dataclass(frozen=True, slots=True)
class Found:
    """A value that differs."""

    path: str
    """Keys and positions with dots between; the number of the node first, if there are two."""
    torch: str
    ours: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference on purpose. All but `why` are patterns of `fnmatch`."""

    cases: tuple[str, ...]
    path: str
    torch: str
    ours: str
    why: str

    def covers(self, found: Found) -> bool:
        """Return whether this is such a difference."""
        pairs = (found.path, self.path), (found.torch, self.torch), (found.ours, self.ours)
        return all(fnmatchcase(value, _plain(pattern)) for value, pattern in pairs)


def _plain(pattern: str) -> str:
    """Return a pattern in which only `*` has a meaning."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def flatten(value: Any, path: str = "") -> dict[str, str]:
    """Return the leaves of a value, by path."""
    if isinstance(value, (dict, list)) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        leaves: dict[str, str] = {}
        for key, one in items:
            leaves |= flatten(one, f"{path}.{key}" if path else str(key))
        return leaves
    return {path: value if isinstance(value, str) else json.dumps(value)}


def find_differences(torch: list[Any], ours: list[Any]) -> list[Found]:
    """Compare what came of a case for each node."""
    pairs = [flatten(nodes[0] if len(nodes) == 1 else nodes) for nodes in (torch, ours)]
    return [
        Found(path, *(leaves.get(path, ABSENT) for leaves in pairs))
        for path in dict.fromkeys([*pairs[0], *pairs[1]])
        if pairs[0].get(path, ABSENT) != pairs[1].get(path, ABSENT)
    ]
