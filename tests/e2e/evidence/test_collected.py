"""The agent finds out what real workers do, whatever that is, within its limit."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rallypoint.agent.evidence.mode import Arming
from rallypoint.agent.preload.command import Preload
from rallypoint.v1 import evidence_pb2
from support.evidence.node import LIMIT_S, Node, running
from support.preload.room import is_forked as is_forked_worker

FREE_S = 2.5
"""The limit, and a turn on a busy machine."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def functions(one: evidence_pb2.RankEvidence) -> list[str]:
    """Return the functions on the stack of its main thread, the innermost first."""
    return [frame.function for frame in one.threads[0].frames]


async def look(node: Node, **wanted: str) -> list[evidence_pb2.RankEvidence]:
    """Return evidence in which ranks are where they get soon after their line."""
    ends_s = time.monotonic() + LIMIT_S
    while True:
        found = await node.supervisor.evidence()
        at = {f"r{one.rank}": functions(one) for one in found if one.threads}
        if time.monotonic() > ends_s or all(
            name in at.get(rank, ()) for rank, name in wanted.items()
        ):
            return found


@pytest.mark.parametrize("is_forked", [False, True], ids=["cold", "forked"])
async def test_stacks_of_workers_that_stand_still(tmp_path: Path, is_forked: bool) -> None:
    """Also of one that holds the interpreter's lock; none of one that a signal has stopped."""
    preload = Preload(modules=("decimal",)) if is_forked else None
    deeds = ("asleep", "locked", "asleep")
    async with running(tmp_path, deeds, preload=preload) as node:
        os.kill(node.pid(2), signal.SIGSTOP)
        await node.await_state(node.pid(2), evidence_pb2.PROCESS_STATE_STOPPED)
        assert [is_forked_worker(node.pid(rank)) for rank in range(3)] == [is_forked] * 3
        await look(node, r0="sleep_well", r1="hold_lock")
        began_s = time.monotonic()
        asleep, locked, stopped = await node.supervisor.evidence()
        took_s = time.monotonic() - began_s
        again, *_ = await node.supervisor.evidence()

    assert [asleep.rank, locked.rank, stopped.rank] == [0, 1, 2]
    assert functions(asleep)[-4:] == ["sleep_well", "sleep", "main", "<module>"]
    assert len(asleep.threads) == 2 and asleep.threads[0].is_main
    assert "sleep_well" in [frame.function for frame in asleep.threads[1].frames]
    assert functions(locked)[-3:] == ["hold_lock", "main", "<module>"]
    assert locked.threads[0].frames[0].file.endswith("doing.py")
    assert locked.state == evidence_pb2.PROCESS_STATE_SLEEPING
    assert stopped.state == evidence_pb2.PROCESS_STATE_STOPPED
    assert "no stacks: a signal has stopped it" in stopped.gaps
    assert took_s < FREE_S
    assert functions(again) == functions(asleep)
    assert set(node.lines.values()) == {node.lines[0]}
    assert "RALLYPOINT" not in node.lines[0] and "PYTHONPATH" not in node.lines[0]


async def test_descriptor_that_is_closed_gets_nothing(tmp_path: Path) -> None:
    """The program may have its own file under that number by now."""
    async with running(tmp_path, ("alone",)) as node:
        (one,) = await node.supervisor.evidence()

    assert not one.threads
    assert "no stacks: it has closed its file" in one.gaps


async def test_server_whose_socket_is_closed_is_not_asked(tmp_path: Path) -> None:
    """It would end the worker."""
    async with running(tmp_path, ("shut",)) as node:
        for _ in range(2):
            (one,) = await node.supervisor.evidence()

    assert one.state != evidence_pb2.PROCESS_STATE_ENDED
    assert "no collectives: it has closed the socket of torch's server" in one.gaps


@pytest.mark.parametrize("arming", [Arming.OFF, Arming.SIGNALS])
async def test_worker_that_is_not_armed_says_so(tmp_path: Path, arming: Arming) -> None:
    """What the kernel and its output tell is there all the same."""
    async with running(tmp_path, ("asleep",), arming=arming) as node:
        (one,) = await node.supervisor.evidence()

    assert one.state in (
        evidence_pb2.PROCESS_STATE_SLEEPING,
        evidence_pb2.PROCESS_STATE_RUNNING,  # it sleeps a moment later
    )
    assert one.cpu_time.ToMilliseconds() > 0
    assert list(one.gaps) == [
        "no stacks: the worker is not armed",
        "no collectives: the worker is not armed",
    ]
    assert ("PYTHONFAULTHANDLER" in node.lines[0]) == (arming is Arming.SIGNALS)


async def test_program_that_is_no_python(tmp_path: Path) -> None:
    """A shell gets no signal and sees no variable of ours."""
    text = f'{sys.executable} -c "$0" "$LOCAL_RANK" "$RALLYPOINT_ARMED" "$PYTHONPATH"; sleep 1000'
    code = (
        "import os, socket, sys; one = socket.socket(socket.AF_UNIX); "
        "one.connect(os.environ['TEST_SOCKET']); one.sendall(' '.join(sys.argv[1:]).encode())"
    )
    async with running(tmp_path, ("",), command=("sh", "-c", text, code)) as node:
        (one,) = await node.supervisor.evidence()

    assert node.lines[0].strip() == os.environ.get("PYTHONPATH", "")
    assert "no stacks: the worker is not armed" in one.gaps


@pytest.mark.parametrize("is_forked", [False, True], ids=["cold", "forked"])
async def test_collectives_of_gloo(tmp_path: Path, is_forked: bool) -> None:
    """The rank that others wait for has entered fewer; nothing on standard error tells of it."""
    preload = Preload(modules=("torch",)) if is_forked else None
    async with running(tmp_path, ("reduced", "late"), preload=preload) as node:
        first, late = await look(node, r1="sleep_well")

    assert [group.name for group in first.groups] == ["0", "1"]
    everyone, pair = first.groups
    assert (everyone.description, everyone.entered, everyone.completed) == ("default_pg", 2, 1)
    assert [(one.first, one.last) for one in everyone.members] == [(0, 1)]
    assert [(one.number, one.operation, one.sizes, one.dtypes) for one in everyone.latest] == [
        (2, "gloo:all_reduce", "[[5]]", "Float"),
        (1, "gloo:all_reduce", "[[4]]", "Float"),
    ]
    assert (pair.description, pair.entered, pair.completed) == ("pair", 1, 1)
    assert [(group.entered, group.completed) for group in late.groups] == [(1, 1), (1, 1)]
    assert "sleep_well" in functions(late)
    assert list(first.gaps) == []
    assert "WorkerServer" not in first.stderr_tail
