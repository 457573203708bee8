"""A worker with one more descriptor than its standard streams."""

import os

import pytest

from rallypoint.agent.helper.events import Spawned, SpawnRequest
from support.processes.processes import PYTHON, Conversation, Lines, exited

LOOK = """
import os, sys
os.write(int(sys.argv[1]), b"passed\\n")
above = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
print(sorted(fd for fd in above if os.path.exists(f"/proc/self/fd/{fd}")))
"""


@pytest.mark.parametrize("number", [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 63])
async def test_passed_descriptor_has_the_wanted_number(talk: Conversation, number: int) -> None:
    """Whatever numbers the helper uses itself; nothing else is open in the worker."""
    passed, printed = Lines(), Lines()
    talk.host.spawn(
        SpawnRequest(
            worker_id=1,
            argv=(*PYTHON, LOOK, str(number)),
            env=dict(os.environ),
            cwd="/",
            stdout_fd=printed.write_fd,
            stderr_fd=2,
            passed_fd=passed.write_fd,
            passed_as=number,
        )
    )
    event = await talk.next()
    assert isinstance(event, Spawned), event

    assert await talk.next() == exited(1, event.pid, 0, None)
    for lines, expected in ((passed, b"passed\n"), (printed, f"[{number}]\n".encode())):
        assert lines.all() == expected
        lines.close()


async def test_program_that_cannot_start_is_reported_with_any_number(talk: Conversation) -> None:
    """The report does not get lost when its descriptor is in the way."""
    passed = Lines()
    for number in range(3, 14):
        request = SpawnRequest(number, ("/no/such/program",), {}, "/", 1, 2)
        talk.host.spawn(request._replace(passed_fd=passed.write_fd, passed_as=number))
        event = await talk.next()

        assert "No such file" in getattr(event, "message", ""), event
    passed.close()
