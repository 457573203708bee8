"""The words of a command line before argparse sees them: which are ours, and how spelt."""

from __future__ import annotations

from collections.abc import Sequence

_SWITCHES = frozenset(
    {
        "--standalone",
        "--no-grow",
        "-m",
        "--module",
        "--no-python",
        "--run-path",
        "--virtual-local-rank",
        "-h",
        "--help",
        "--version",
    }
)


def with_dashes(argv: Sequence[str]) -> list[str]:
    """Spell our flags with dashes, as far as the script: torchrun takes `--a_b` too."""
    found: list[str] = []
    for position, word in enumerate(argv):
        if not word.startswith("-") and (position == 0 or not _takes_value(argv[position - 1])):
            return [*found, *argv[position:]]
        name, equals, value = word.partition("=")
        found.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    return found


def _takes_value(word: str) -> bool:
    return word.startswith("-") and "=" not in word and word.replace("_", "-") not in _SWITCHES
