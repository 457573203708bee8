"""What may be skipped is a list."""

from __future__ import annotations

import pytest

from support.tries.skips import Skips


@pytest.mark.parametrize(
    ("machine", "reason", "expected"),
    [
        ("", "needs kubectl", True),
        ("ci", "needs kubectl", True),
        ("", "only root can give files away", True),
        ("ci", "only root can give files away", False),
        ("", "it fails now and then", False),
        ("", "needs kubectl, or so", False),
    ],
)
def test_listed(machine: str, reason: str, expected: bool) -> None:
    """A reason is listed whole, for a machine."""
    skips = Skips(machine)
    skips.reasons[reason] += 1

    assert skips.unlisted() == ([] if expected else [reason])
