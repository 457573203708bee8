"""Names of signals."""

from __future__ import annotations

from rallypoint.base.exit_codes import find_signal_name


def test_signal_has_a_name_or_none() -> None:
    """A real-time signal between the first and the last has no name."""
    assert ("SIGKILL", "", "") == (
        find_signal_name(9),
        find_signal_name(40),
        find_signal_name(0),
    )
