"""A function that starts processes which do not end by themselves."""

from __future__ import annotations

import os

from support.processes.processes import STUBBORN_TREE


def grow() -> None:
    """Print the pid of the helper, and start the stubborn tree; every pid is printed."""
    os.write(1, f"helper {os.getppid()}\n".encode())
    exec(STUBBORN_TREE, {})
