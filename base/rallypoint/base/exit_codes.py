"""How processes end: exit codes of the commands, and names of signals.

An agent that a signal ends exits with 128 plus its number.
"""

from __future__ import annotations

import signal

EXIT_FAILED = 1
"""The job failed, or this node could not take part to the end."""
EXIT_USAGE = 2
"""The command line is wrong, or the coordinator refused the agent because of it."""
EXIT_SOFTWARE = 70
"""A bug in the agent ended it; EX_SOFTWARE of sysexits.h. The log has the traceback."""
EXIT_UNREACHABLE = 75
"""No coordinator answered in time; EX_TEMPFAIL of sysexits.h, so a scheduler may try again."""
EXIT_DENIED = 77
"""The coordinator does not know this node, or does not allow it this job; EX_NOPERM of
sysexits.h."""
EXIT_NO_REQUEUE = 93
"""A worker's exit code forbids another start of the job. Shells, Slurm and sysexits.h do not use
this number, so a scheduler can act on it."""
EXIT_CANCELLED = 94
"""An operator cancelled the run, so a scheduler must not start it again."""
EXIT_SIGNAL_BASE = 128
"""Added to the number of the signal that ended the agent."""


def find_signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL"; empty for a number without one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
