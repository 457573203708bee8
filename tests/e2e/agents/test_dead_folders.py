"""What a killed agent leaves among the temporary files, the next agent on the node removes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.processes.world import World

PLANTED = str(Path(__file__).with_name("planted.py"))


def list_folders(world: World) -> set[str]:
    return {name for name in os.listdir(world.folder) if name.startswith("rallypoint_")}


def test_next_agent_removes_the_folders_of_a_dead_one(world: World) -> None:
    """Its sockets and notices are gone, its logs stay, and a living agent keeps everything."""
    dead = world.agent("a", "-r3", nnodes="1:3")
    (worker,) = world.mailbox.workers(1)
    worker.tell("say", "last words")
    # It looks for such folders too, and on a busy machine so late that it would find this one.
    living = world.agent("b", nnodes="1:3", prefix=(sys.executable, PLANTED, "no tidying"))
    world.mailbox.workers(2, round=2)
    before = list_folders(world)
    dead.kill()
    kept = world.mailbox.workers(1, round=3)[0]
    third = world.agent("c", nnodes="1:3")
    world.mailbox.workers(2, round=4)
    removed = third.wait_event("dead_folders_removed")["folders"]

    assert len(removed) == 1 and Path(removed[0]).name in before
    assert not Path(removed[0]).exists()
    log = next(world.folder.glob("rallypoint_*/attempt_0/0/stderr.log"))
    assert "last words" in log.read_text()
    assert Path(kept.env["RALLYPOINT_NOTICE_FILE"]).parents[1].exists()
    for one in world.mailbox.workers(2, round=4):
        one.tell("exit", "0")
    assert [agent.wait() for agent in (living, third)] == [0, 0]
    assert len(list_folders(world)) == 1
