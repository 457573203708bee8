"""Where a forkserver has its sockets, whatever numbers the helper uses itself."""

from __future__ import annotations

import os

from rallypoint.agent.helper.events import Spawned, SpawnFailed, SpawnRequest
from rallypoint.agent.helper.frames import FORKSERVER_FDS
from support.processes.processes import PYTHON, Conversation, Lines

LOOK = """
import os
names = [name for name in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + name)]
os.write(63, (" ".join(sorted(names, key=int)) + "\\n").encode())
os.read(62, 1)
"""


async def test_sockets_of_forkservers(talk: Conversation) -> None:
    """Nothing else is open in them, and a report of a failure does not get lost."""
    told = Lines()
    request = SpawnRequest(0, (*PYTHON, LOOK), dict(os.environ), "/", 1, 2, server_fd=told.write_fd)
    for number in range(1, max(FORKSERVER_FDS) + 1):  # each takes a number of the helper's
        talk.host.spawn(request._replace(worker_id=number))
        assert isinstance(await talk.next(), Spawned)
        assert told.line() == "0 1 2 62 63"
        missing = request._replace(worker_id=1000 + number, argv=("/no/such/program",))
        talk.host.spawn(missing)
        event = await talk.next()
        assert isinstance(event, SpawnFailed) and "No such file" in event.message, (number, event)
    told.close()
