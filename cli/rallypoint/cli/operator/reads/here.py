"""The coordinators of this user that run on this host, for someone who has named none.

Those inside agents of single nodes keep a token; those that agents or people have started have a
folder. All hold a lock as long as they live.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from rallypoint.base.addresses import COORDINATOR_PORT
from rallypoint.base.private_files import open_private
from rallypoint.base.user_folders import find_state_home, find_temporary_home, name_hosted
from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.connection import choose_access, choose_target
from rallypoint.cli.operator.reaching import find_problem
from rallypoint.client.errors import RallypointError
from rallypoint.wire.access import AccessFailed
from rallypoint.wire.local_token import find_ports

SHOWN_MAX = 4
"""Coordinators that are named."""
LOOKED_S_MAX = 1.0
"""How long all of them together may take to say which jobs they have."""
JOBS_MAX = 2
"""Jobs of each that are named."""
LOCK = "journal.sqlite-lock"


def find_here() -> str:
    """Return how to name each coordinator, and its jobs; empty: there is none."""
    end_s = time.monotonic() + LOOKED_S_MAX
    ports = sorted({*find_ports(), *_find_folders()})
    found = (_describe(port, end_s) for port in ports)
    return ", ".join(islice(filter(None, found), SHOWN_MAX))


def _find_folders() -> Iterator[int]:
    """Yield the ports of those that have a folder."""
    hosted = re.escape(name_hosted(0)).removesuffix("0")
    names = re.compile(rf"(?:{hosted}|coordinator-)(\d{{1,5}})")
    for home in (find_state_home(), find_temporary_home()):
        with suppress(OSError):
            for match in filter(None, map(names.fullmatch, os.listdir(home))):
                if _is_locked(home / match[0] / LOCK):
                    yield int(match[1])


def _is_locked(path: Path) -> bool:
    """Return whether a process that lives holds a lock of this user."""
    try:
        fd = open_private(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _describe(port: int, end_s: float) -> str:
    """Return how to name a coordinator, with its jobs if it says which; empty: it is of no use."""
    from rallypoint.client.sync import Client

    common = Common(coordinator=f"localhost:{port}")
    left_s = end_s - time.monotonic()
    if port == COORDINATOR_PORT or left_s <= 0:
        return ""
    target = choose_target(common, {})
    jobs = list[str]()
    try:
        access = choose_access(common, target, os.environ)
        if find_problem(target.endpoints, access, left_s, left_s):
            return ""
        with Client(target.endpoints, limit_s=left_s, access=access) as client:
            jobs += (one.job_id for one in islice(client.list_jobs(), JOBS_MAX + 1))
    except (AccessFailed, RallypointError):
        pass  # it lives, and wants another proof or is slow
    if not jobs:
        return f"-c localhost:{port}"
    more = ", …" if len(jobs) > JOBS_MAX else ""
    return f"-c localhost:{port} (job{'s'[: len(jobs) > 1]} {', '.join(jobs[:JOBS_MAX])}{more})"
