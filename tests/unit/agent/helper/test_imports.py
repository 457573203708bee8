"""The helper loads the standard library and itself, nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rallypoint.agent.helper import main

IMPORT_ROOT = str(Path(main.__file__).parents[3])
COSTLY = {"asyncio", "dataclasses", "subprocess", "typing"}
"""Modules of the standard library that would make the helper larger than its 10 MB."""
PROGRAM = """
import socket, sys
sys.path.append(sys.argv[1])
from rallypoint.agent.helper.main import main
ours, theirs = socket.socketpair()
ours.close()
main(theirs.detach())
print(*sys.modules)
"""


def test_helper_loads_the_standard_library_only() -> None:
    """A helper whose agent hangs up has loaded no other module, and none that is costly."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, IMPORT_ROOT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    loaded = {name for name in done.stdout.split() if name != "__main__"}
    foreign = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}

    assert "rallypoint.agent.helper.main" in foreign
    assert foreign - {"rallypoint", "rallypoint.agent", "rallypoint.agent.helper"} == {
        name for name in foreign if name.startswith("rallypoint.agent.helper.")
    }
    assert loaded & COSTLY == set()
