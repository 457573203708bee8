"""The notice file of a round: its announced events. It exists while there is a notice.

A script checks whether the file that RALLYPOINT_NOTICE_FILE names exists, which takes a microsecond
a step. The file is replaced atomically, so a reader never sees half of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from rallypoint.agent.core.desired import Notice

NAME = "notices.json"


def notice_file(folder: Path, number: int) -> Path:
    """Return the file of round `number` below the agent's own `folder`."""
    return folder / str(number) / NAME


def write_notices(path: Path, notices: Sequence[Notice], node_name: str) -> None:
    """Write these notices to `path`, soonest first; without any, remove the file.

    Each is an object with `kind` ("growth" or "drain"), `node` (the one that leaves), `here`
    (whether that is this node), `reason`, and `deadline`: when it happens at the latest, in seconds
    of CLOCK_MONOTONIC, which all processes of a machine share (Python: `time.monotonic()`).
    """
    if not notices:
        path.unlink(missing_ok=True)
        return
    content = [
        {
            "kind": notice.kind,
            "node": node_name if notice.is_here else notice.node,
            "here": notice.is_here,
            "reason": notice.reason,
            "deadline": notice.until_ms / 1000,
        }
        for notice in sorted(notices, key=lambda notice: notice.until_ms)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(content))
    os.replace(fresh, path)
