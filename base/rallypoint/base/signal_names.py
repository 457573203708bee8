"""Names of signals, for people."""

from __future__ import annotations

import signal


def find_signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"; empty for a number without one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
