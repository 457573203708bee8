"""What signals to the agent are for: to end it, or to tell its workers something.

A signal for telling goes to the workers themselves. One for ending goes to their groups, because
it is for everything that they have started as well.

Imported by the command line before the helper process starts: no module that takes time.
"""

from __future__ import annotations

import signal

TELLING: frozenset[int] = frozenset(
    {
        signal.SIGUSR1,
        signal.SIGUSR2,
        # What these mean to a program that does not handle them is not its end.
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
"""Signals that tell a program something; every other one is for ending it."""
