"""A keeper on this host: it starts one coordinator, finds another program, and gives up clearly."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rallypoint.agent.helper.descendants import await_any_exit, spared_children
from rallypoint.agent.hosting.decision import Hosting
from rallypoint.agent.hosting.facts import is_own
from rallypoint.agent.hosting.folder import (
    JOURNAL,
    LINGERING,
    LOCK,
    find_lingering,
    make_folder,
    remove_unused,
)
from rallypoint.agent.hosting.keeper import CannotHost, JobOver, Keeper
from rallypoint.agent.hosting.process import HostedProcess, compute_command, end_lingering
from rallypoint.agent.hosting.protection import Protection
from rallypoint.agent.machine.ports import PortReserver
from rallypoint.wire.access import PLAIN, Access
from support.access.authority import Authority
from support.machines.resolver import install
from support.operator.broken import listening


@pytest.fixture
def port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A free port, and a folder for its coordinator; what was started ends with the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = set(spared_children)
    ports = PortReserver()
    try:
        free = ports.reserve()
    finally:
        ports.close()
    yield free
    for pid in spared_children - before:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        spared_children.discard(pid)


def keeper(port: int, *, is_chosen: bool | None = None, host: str = "127.0.0.1") -> Keeper:
    made = Keeper(hosting(port, is_chosen=is_chosen, host=host))
    made.begin()
    return made


def hosting(port: int, *, is_chosen: bool | None = None, host: str = "127.0.0.1") -> Hosting:
    return Hosting(endpoint=f"{host}:{port}", is_chosen=is_chosen, unused_ms=60_000, window_ms=0)


def kept(port: int) -> Iterator[Path]:
    """Return the folders of coordinators of this port."""
    return (Path(os.environ["XDG_STATE_HOME"]) / "rallypoint").glob(f"*-{port}")


def started(before: set[int]) -> list[int]:
    return sorted(spared_children - before)


def test_only_the_host_starts_a_coordinator(port: int) -> None:
    """Other nodes wait for it."""
    before = set(spared_children)
    other = keeper(port, is_chosen=False)
    asyncio.run(other.prepare())
    other.await_end()

    assert (other.is_host, started(before)) == (False, [])


def test_agent_that_is_interrupted_at_its_start_leaves_no_coordinator(port: int) -> None:
    """One that has not answered yet would wait for nodes until the join timeout."""
    before = set(spared_children)
    one = keeper(port)
    (pid,) = started(before)
    one.await_end()

    assert started(before) == []
    assert list(kept(port)) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.long
def test_node_whose_endpoint_leads_elsewhere_says_so_and_leaves_nothing(port: int) -> None:
    """Such as node 0 with the address of another host as --master-addr."""
    before = set(spared_children)
    misled = keeper(port, is_chosen=True, host="203.0.113.9")
    asyncio.run(misled.prepare())
    assert len(started(before)) == 1
    assert f"203.0.113.9:{port} does not lead here" in misled.describe_wait()
    misled.await_end()

    assert started(before) == []
    assert list(kept(port)) == []


@pytest.mark.long
@pytest.mark.parametrize("first", ["127.0.0.1", "[::1]"])
def test_coordinator_for_another_address_of_this_host_is_named(
    port: int, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one can have the port; an agent with another loopback address never reaches it."""
    if first == "[::1]" and not is_own("::1"):
        pytest.skip("this host has no IPv6")
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.STRANGER_S", 0.0)
    before = set(spared_children)
    one = keeper(port, host=first)
    asyncio.run(one.prepare())
    other = keeper(port, host="127.0.0.2")
    text = f"listens on port {port} of this host, but not at 127.0.0.2: give all agents"
    with pytest.raises(CannotHost, match=text):
        asyncio.run(other.prepare())
    other.await_end()

    assert len(started(before)) == 1
    assert list(kept(port)) != []


def test_folder_that_others_can_move_is_named(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent warns: the log of its coordinator goes with the folder."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    tmp_path.chmod(0o777)
    one = keeper(port)
    with capture_logs() as lines:
        asyncio.run(one.prepare())

    (line,) = [line for line in lines if line["event"] == "journal_folder_exposed"]
    assert line["why"] == f"everyone can write {tmp_path}"


def test_coordinator_that_cannot_listen_leaves_no_files(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line has the last one of its log."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.YIELD_S", 0.0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))  # and does not listen
        unlucky = keeper(port)
        with pytest.raises(CannotHost, match=r"does not start: .*the port is in use"):
            asyncio.run(unlucky.prepare())

    assert list(kept(port)) == []


SLOW = """\
import os, runpy, sys
from pathlib import Path
from rallypoint.server.journal.sqlite import file

(path,) = (word.partition(":")[2] for word in sys.argv if word.startswith("--state="))
held = file.lock(Path(path))
print("locked", flush=True)
sys.stdin.readline()
os.close(held)
runpy.run_module("rallypoint", run_name="__main__")
"""
"""A coordinator on a busy machine: it has the journal, and takes its time until it listens."""


def test_slow_coordinator_of_another_agent_is_waited_for(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that this agent starts meanwhile end; it must not give up before the other listens."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.YIELD_S", 0.0)
    before = set(spared_children)
    words = compute_command(hosting(port), make_folder(port))
    argv = [sys.executable, "-c", SLOW, *words]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}

    async def join(late: Keeper, let_listen: Callable[[], object]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(late.prepare())
            await asyncio.to_thread(await_any_exit, started(before), 20_000)
            let_listen()

    with subprocess.Popen(argv, **pipes) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == "locked\n"
            asyncio.run(join(keeper(port), lambda: print(file=other.stdin, flush=True)))
            assert started(before) == []
            assert make_folder(port).joinpath(LOCK).read_text() == str(other.pid)
        finally:
            other.kill()


def test_journal_of_a_killed_coordinator_outlives_an_attempt_that_fails(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of its job may still run: the next attempt continues from it."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.YIELD_S", 0.0)
    journal = make_folder(port) / JOURNAL
    journal.touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        unlucky = keeper(port)
        with pytest.raises(CannotHost):
            asyncio.run(unlucky.prepare())

    assert journal.exists()


@pytest.mark.long
def test_keepers_that_start_at_once_get_one_coordinator(port: int) -> None:
    """One has the port, and is logged; the process of the other ends, and its keeper is content."""
    before = set(spared_children)
    one, two = keeper(port), keeper(port)

    async def both() -> None:
        await asyncio.gather(one.prepare(), two.prepare())

    with capture_logs() as lines:
        asyncio.run(both())

    said = [line for line in lines if line["event"] == "coordinator_started"]
    assert len(said) == 1
    # On a slow machine the first may listen before the other looks, which then starts none.
    for other in {*started(before)} - {said[0]["pid"]}:
        assert await_any_exit((other,), 20_000)
    assert not ended(said[0]["pid"])
    asyncio.run(both())


@pytest.mark.long
def test_coordinator_that_comes_too_late_is_ended(port: int) -> None:
    """It would listen when the one in use has ended, and wait for nodes that never come."""
    before = set(spared_children)
    one = keeper(port)
    asyncio.run(one.prepare())
    (first,) = started(before)
    two = keeper(port)
    two.start()
    assert len(started(before)) == 2
    two.welcomed()
    one.welcomed()

    assert started(before) == [first]
    assert not ended(first)


def ended(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"Z"


@pytest.mark.long
def test_coordinator_that_lingers_makes_room(port: int) -> None:
    """For a new agent; one whose job is over waits for it no more, and one that lost it asks it."""
    before = set(spared_children)
    one = keeper(port)
    asyncio.run(one.prepare())
    (pid,) = started(before)
    one.welcomed()
    make_folder(port).joinpath(LINGERING).write_text(str(pid))
    one.is_over = True
    one.await_end()
    assert not ended(pid)
    asyncio.run(one.prepare())
    assert started(before) == [pid]
    two = keeper(port)
    asyncio.run(two.prepare())

    assert ended(pid)
    assert len(started(before)) == 2


def test_process_that_is_no_coordinator_is_left_alone(port: int) -> None:
    """A number that another process has by now, or has in another container."""
    folder = make_folder(port)
    for name in (JOURNAL, LOCK, LINGERING):
        folder.joinpath(name).write_text(str(os.getpid()))
    assert find_lingering(port) == (folder, os.getpid())
    end_lingering(port)

    assert folder.joinpath(LINGERING).exists()


@pytest.mark.long
def test_agent_that_was_away_starts_no_coordinator_for_a_job_that_is_over(port: int) -> None:
    """Its coordinator has removed the journal; another one could not tell how the job has ended."""
    before = set(spared_children)
    one = keeper(port)
    asyncio.run(one.prepare())
    one.welcomed()
    (pid,) = started(before)
    os.kill(pid, signal.SIGKILL)
    assert await_any_exit((pid,), 10_000)
    remove_unused(make_folder(port))
    with pytest.raises(JobOver, match="has ended while this node was away"):
        asyncio.run(one.prepare())

    assert started(before) == []


def test_other_program_at_the_endpoint_is_named_as_the_reason(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, but not as a coordinator."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.STRANGER_S", 0.0)
    with listening(b"SSH-2.0-OpenSSH_9.2\r\n", port):
        stranger = keeper(port)
        with pytest.raises(CannotHost, match=f"another program listens at 127.0.0.1:{port}"):
            asyncio.run(stranger.prepare())


def test_what_is_silent_is_not_called_another_program(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a coordinator that stands still, and has more time to answer."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.STRANGER_S", 0.0)
    text = f"what listens at 127.0.0.1:{port} does not answer: is it stopped"
    with socket.create_server(("127.0.0.1", port)):
        silent = keeper(port)
        asyncio.run(silent.prepare())
        assert silent.describe_wait().startswith(text)
        monkeypatch.setattr("rallypoint.agent.hosting.keeper.SILENT_S", 0.0)
        with pytest.raises(CannotHost, match=re.escape(text)):
            asyncio.run(silent.prepare())


def test_name_server_that_is_silent_makes_no_stranger(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's name is not known yet: nothing was asked, so nothing is wrong."""
    resolver = install(monkeypatch)
    resolver.hold("head")
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.STRANGER_S", 0.0)
    try:
        with socket.create_server(("127.0.0.1", port)):
            waiting = keeper(port, host="head", is_chosen=True)
            asyncio.run(waiting.prepare())
    finally:
        resolver.release_all()

    assert "another program" not in waiting.describe_wait()


def test_coordinator_that_does_not_start_is_explained(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the last line of its log."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.ATTEMPTS_MAX", 1)
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.YIELD_S", 0.0)
    make_folder(port).joinpath(JOURNAL).mkdir()
    broken = keeper(port)

    with pytest.raises(CannotHost, match=r"does not start: .*journal\.sqlite"):
        asyncio.run(broken.prepare())


@pytest.mark.long
def test_journal_is_temporary_where_the_state_folder_cannot_hold_one(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many file servers have no locks; a folder in the journal's place fails as clearly."""
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.YIELD_S", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_folder(port).joinpath(JOURNAL).mkdir()
    made = keeper(port)
    asyncio.run(made.prepare())

    assert make_folder(port, is_temporary=True).joinpath(JOURNAL).is_file()


async def test_name_that_was_unknown_at_first_makes_a_host_later(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may start before its name is known."""
    answers = [False, True]
    monkeypatch.setattr("rallypoint.agent.hosting.keeper.is_host", lambda _: answers.pop(0))
    waiting = keeper(port)
    assert not waiting.is_host
    with socket.create_server(("127.0.0.1", port)):
        await waiting.prepare()

    assert waiting.is_host


def test_coordinator_of_a_person_is_not_replaced(port: int) -> None:
    """It comes back by itself, for example after an upgrade, and needs its port then."""
    before = set(spared_children)
    with socket.create_server(("127.0.0.1", port)):
        used = keeper(port)
        used.welcomed()
    asyncio.run(used.prepare())

    assert (used.is_host, started(before)) == (False, [])


def test_host_without_a_certificate_starts_no_coordinator(port: int) -> None:
    """If another program listens there, the node needs no certificate."""
    before = set(spared_children)
    hosting = Hosting(endpoint=f"127.0.0.1:{port}", is_chosen=True, unused_ms=1, window_ms=0)
    with pytest.raises(CannotHost, match="give --tls-cert and --tls-key"):
        Keeper(hosting, Access(is_tls=True)).begin()
    with socket.create_server(("127.0.0.1", port)):
        Keeper(hosting, Access(is_tls=True)).begin()

    assert started(before) == []


@pytest.mark.long
@pytest.mark.parametrize("name", ["127.0.0.1", "head.example"])
def test_coordinator_with_tls_is_recognized(port: int, tmp_path: Path, name: str) -> None:
    """By an agent with a certificate; another one learns what it needs."""
    authority = Authority(tmp_path / "a")
    pair = authority.issue("head", [name])
    server_name = "" if name == "127.0.0.1" else name
    access = Access(
        ca_file=authority.ca, cert_file=pair.cert, key_file=pair.key, server_name=server_name
    )
    hosting = Hosting(endpoint=f"127.0.0.1:{port}", is_chosen=True, unused_ms=60_000, window_ms=0)
    made = Keeper(hosting, access)
    made.begin()
    asyncio.run(made.prepare())
    plain = Keeper(hosting)
    asyncio.run(plain.prepare())

    assert made.describe_wait() == f"this node hosts it: 127.0.0.1:{port} must lead here"
    assert "cannot be used: it uses TLS: give --tls-ca FILE" in plain.describe_wait()


def test_token_that_is_too_short_is_no_reason_to_try(port: int) -> None:
    """No coordinator starts, however short the time until the agent gives up."""
    before = set(spared_children)
    hosting = Hosting(endpoint=f"127.0.0.1:{port}", is_chosen=True, unused_ms=1, window_ms=0)
    with pytest.raises(CannotHost, match="RALLYPOINT_TOKEN has fewer than 16 characters"):
        Keeper(hosting, Access(token="short")).begin()

    assert started(before) == []


def test_what_a_node_waits_for(port: int) -> None:
    """The host itself, node 0, or the node of that name; and what to look at."""
    check = "hosts it: check that its agent runs, and that its port"
    first = keeper(port, is_chosen=False).describe_wait()
    named = Keeper(Hosting(endpoint="head:1", is_chosen=None, unused_ms=1, window_ms=0))

    assert first == f"node 0 (or that with is_host) at 127.0.0.1 {check} {port} is open"
    assert named.describe_wait() == f"head {check} 1 is open"


@pytest.mark.parametrize(
    ("host", "listens"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("head", "0.0.0.0")],
)
def test_loopback_endpoint_is_not_reached_from_other_hosts(host: str, listens: str) -> None:
    """No other host could name it."""
    hosting = Hosting(endpoint=f"{host}:7", is_chosen=None, unused_ms=1_500, window_ms=None)
    words = compute_command(hosting, Path("/f"))

    assert words[:3] == ["coordinator", f"--host={listens}", "--port=7"]
    assert "--until-idle=1.5" in words
    assert not any(word.startswith("--startup-window") for word in words)


def test_process_has_nothing_of_the_agent(port: int) -> None:
    """No pipe of its caller, no terminal, its own session; no sweep of orphans takes it."""
    read_fd, write_fd = os.pipe()
    os.set_inheritable(write_fd, True)
    hosting = Hosting(endpoint=f"127.0.0.1:{port}", is_chosen=True, unused_ms=60_000, window_ms=0)
    process = HostedProcess(hosting, make_folder(port), Protection(PLAIN, "h"), is_fresh=True)
    os.close(write_fd)

    assert os.read(read_fd, 1) == b""  # no other process has its other end
    os.close(read_fd)
    assert (os.getsid(process.pid), process.pid in spared_children) == (process.pid, True)
    assert os.readlink(f"/proc/{process.pid}/cwd") == "/"
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(10)
    assert (process.has_ended(), process.pid in spared_children) == (True, False)
