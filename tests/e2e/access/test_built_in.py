"""A coordinator inside an agent obeys the user of the agent, and no other user of its host."""

from __future__ import annotations

import sys

from support.processes.world import World

NOT_ALLOWED = 77
NAMELESS = """
from rallypoint.cli.operator import connection
connection.DEFAULT = "localhost:1"
from rallypoint.cli.main import rallypoint
rallypoint()
"""
"""A command that names no coordinator, on a host that has none at the default port."""


def test_only_programs_of_the_same_user_reach_the_built_in_coordinator(world: World) -> None:
    """They need no flags; to another user, who has other folders, the job is closed."""
    agent = world.start("agent", world.standalone("--job-id=mine"))
    (worker,) = world.mailbox.workers(1)
    target = worker.env["RALLYPOINT_COORDINATOR"]
    rallypoint = (sys.executable, "-m", "rallypoint")
    folder = world.folder / "other"
    (folder / "tmp").mkdir(parents=True)
    other = {"XDG_STATE_HOME": str(folder / "state"), "TMPDIR": str(folder / "tmp")}
    for command in ("cancel", "status", "explain"):
        refused = world.run(*rallypoint, command, "mine", f"--coordinator={target}", env=other)
        assert refused.returncode == NOT_ALLOWED, refused.stdout + refused.stderr
    port = target.rpartition(":")[2]
    for command, address in (("status", target), ("explain", f"localhost:{port}")):
        done = world.run(*rallypoint, command, "mine", f"--coordinator={address}")
        assert done.returncode == 0, done.stderr
    nameless = world.run(sys.executable, "-c", NAMELESS, "jobs")
    assert nameless.stderr.endswith(f"; on this host: -c localhost:{port} (job mine)\n")
    named = {"RALLYPOINT_TOKEN": "for-another-coordinator"}
    done = world.run(*rallypoint, "cancel", "mine", f"--coordinator={target}", env=named)
    assert done.returncode == 0, done.stderr

    assert agent.wait() != 0
    assert list((world.folder / "state/rallypoint/tokens").iterdir()) == []
    assert {one["outcome"] for one in agent.events("audit")} == {"ACCESS_TOKEN_MISSING"}
