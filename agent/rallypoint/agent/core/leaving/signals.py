"""Signals to the agent: those that end it, and those that it only forwards.

A signal that is only forwarded goes to the worker processes alone. One that ends the agent goes to
their process groups, because it is meant for everything that the workers started as well.

The command line imports this before the helper process starts, so imports here must be fast.
"""

from __future__ import annotations

import signal

FORWARDED_ONLY: frozenset[int] = frozenset(
    {
        signal.SIGUSR1,
        signal.SIGUSR2,
        # These do not end a program that does not handle them.
        signal.SIGCONT,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGURG,
        signal.SIGWINCH,
        signal.SIGIO,
        *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
    }
)
"""Signals that notify a program; every other one ends it."""
DEFAULT_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that an agent handles by default, as torchrun does. Its helper ignores them."""
DEFAULT_SIGNAL_NAMES = ",".join(one.name for one in DEFAULT_SIGNALS)
"""The same as a user writes them."""


def describe_signal(signum: int) -> str:
    """Return why the agent ends, for people: "interrupted (SIGINT)", "received SIGTERM"."""
    name = signal.Signals(signum).name
    return f"interrupted ({name})" if signum == signal.SIGINT else f"received {name}"
