"""Names are looked up by threads; who waits has a limit, and what was found is kept."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext
from multiprocessing.connection import Connection

import pytest

from rallypoint.base import names
from rallypoint.base.names import Found, Unresolved, find, find_soon
from support.machines.resolver import LIMIT_S, Resolver

SOON_S = 0.01


def await_end(host: str) -> None:
    """Wait until no look-up of a name is under way."""
    look_up = names._names[host].look_up
    if look_up is not None:
        look_up.exception(LIMIT_S)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%1"])
def test_address_needs_no_look_up(host: str, resolver: Resolver) -> None:
    """It is given as it is."""
    assert (find(host), resolver.asked) == (Found((host,)), [])


async def test_look_up_that_takes_long_is_joined(resolver: Resolver) -> None:
    """Who waits gives up after its limit, and the next one gets the answer to the same question."""
    resolver.known["head"] = ("10.0.0.1", "10.0.0.2")
    resolver.hold("head")
    with pytest.raises(Unresolved, match="head is not resolved yet: the name server is"):
        await find_soon("head", SOON_S)
    with pytest.raises(Unresolved) as slow:
        find("head", SOON_S)
    assert slow.value.is_slow
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(find_soon("head", LIMIT_S))
        await asyncio.sleep(0)  # it begins
        resolver.release("head")

    assert Found(("10.0.0.1", "10.0.0.2")) == waiting.result()
    assert ["head"] == resolver.asked


async def test_answer_that_comes_while_nothing_waits_is_kept(resolver: Resolver) -> None:
    """Such as in the pause between two attempts."""
    resolver.known["head"] = ("10.0.0.1",)
    resolver.hold("head")
    with pytest.raises(Unresolved):
        await find_soon("head", SOON_S)
    resolver.release("head")
    await_end("head")

    assert ("10.0.0.1",) == find("head", 0.0).addresses


def test_known_name_waits_for_no_server(resolver: Resolver) -> None:
    """It is looked up again beside, for the next attempt."""
    resolver.known["head"] = ("10.0.0.1",)
    find("head", LIMIT_S)
    resolver.known["head"] = ("10.0.0.2",)
    resolver.hold("head")

    assert ("10.0.0.1",) == find("head", 0.0).addresses
    resolver.release("head")
    await_end("head")
    assert ("10.0.0.2",) == find("head", 0.0).addresses


@pytest.mark.parametrize("is_known", [True, False])
def test_name_is_asked_for_once_in_a_moment(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A name that is unknown, such as that of this host itself, as one that is known."""
    monkeypatch.setattr(names, "AGAIN_S", LIMIT_S)
    resolver.known |= {"head": ("10.0.0.1",)} if is_known else {}
    for _ in range(3):
        with nullcontext() if is_known else pytest.raises(Unresolved, match="head cannot be"):
            find("head", LIMIT_S)

    assert ["head"] == resolver.asked


@pytest.mark.parametrize(
    ("error", "is_kept", "text"),
    [
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            False,
            "head cannot be resolved: is it spelled right?",
        ),
        (
            socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
            True,
            "head cannot be resolved: no name server answers; see /etc/resolv.conf",
        ),
        (
            socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure"),
            True,
            "head cannot be resolved: Non-recoverable failure",
        ),
        (
            UnicodeError("label too long"),
            False,
            "head cannot be resolved: it cannot be a host name; look for a typing error",
        ),
    ],
)
def test_only_an_unknown_name_is_forgotten(
    error: Exception, is_kept: bool, text: str, resolver: Resolver
) -> None:
    """A server that fails says nothing about the name."""
    resolver.errors["head"] = error
    with pytest.raises(Unresolved) as unresolved:
        find("head", LIMIT_S)
    assert (text, False) == (str(unresolved.value), unresolved.value.is_slow)
    del resolver.errors["head"]
    resolver.known["head"] = ("10.0.0.1",)
    find("head", LIMIT_S)
    resolver.errors["head"] = error
    find("head", LIMIT_S)
    await_end("head")

    assert is_kept == (names._names["head"].found is not None)


def test_problem_of_the_last_look_up_is_told_while_the_next_one_takes_long(
    resolver: Resolver,
) -> None:
    """A server that takes 8 s to fail shows how it fails."""
    resolver.errors["head"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    with pytest.raises(Unresolved):
        find("head", LIMIT_S)
    resolver.hold("head")

    with pytest.raises(Unresolved, match="; before: head cannot be resolved: no name"):
        find("head", SOON_S)


def test_name_of_this_host_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have it. Its name server may be silent, too."""
    held = threading.Event()
    monkeypatch.setattr(socket, "getfqdn", lambda: str(held.wait(LIMIT_S)))
    names.find_full_name.cache_clear()
    try:
        assert socket.gethostname() == names.find_full_name(SOON_S)
    finally:
        held.set()
        names.find_full_name.cache_clear()


def test_threads_are_limited(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each belongs to a name; the name after the last says why it is not looked up."""
    monkeypatch.setattr(names, "LOOK_UPS_MAX", 2)
    for host in ("a", "b", "b"):
        resolver.hold(host)
        with pytest.raises(Unresolved):
            find(host, SOON_S)
    with pytest.raises(Unresolved, match="c cannot be resolved now: 2 other names are being"):
        find("c", LIMIT_S)
    assert ["a", "b"] == sorted(resolver.asked)
    resolver.release("a")
    await_end("a")
    resolver.known["c"] = ("10.0.0.3",)

    assert ("10.0.0.3",) == find("c", LIMIT_S).addresses


def test_names_are_limited(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was asked for longest ago is forgotten."""
    monkeypatch.setattr(names, "NAMES_MAX", 2)
    resolver.known = {host: ("10.0.0.1",) for host in "abc"}
    for host in "abac":
        find(host, LIMIT_S)

    assert ["a", "c"] == list(names._names)


def test_thread_that_cannot_start_is_no_crash(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a cgroup may pass."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(Unresolved, match="head cannot be resolved now: can't start new"):
            find("head", LIMIT_S)
    resolver.known["head"] = ("10.0.0.1",)

    assert ("10.0.0.1",) == find("head", LIMIT_S).addresses


def test_fork_waits_for_no_thread_of_its_parent(resolver: Resolver) -> None:
    """None is there to answer; it asks again."""
    resolver.known["head"] = ("10.0.0.1",)
    resolver.hold("head")
    with pytest.raises(Unresolved):
        find("head", SOON_S)
    here, there = multiprocessing.Pipe()

    def ask(answer: Connection) -> None:
        resolver.release("head")
        answer.send(find("head", LIMIT_S).addresses)

    child = multiprocessing.get_context("fork").Process(target=ask, args=(there,))
    child.start()

    assert here.poll(LIMIT_S)
    assert ("10.0.0.1",) == here.recv()
    child.join()


HANGING = """
import asyncio, threading
from rallypoint.base import names
names.look_up_now = lambda host: threading.Event().wait()
async def main():
    try:
        await names.find_soon("head", 0.01)
    except names.Unresolved as error:
        print(error.is_slow)
asyncio.run(main())
"""


def test_look_up_that_hangs_keeps_no_process_from_ending() -> None:
    """Neither the end of its event loop nor that of the interpreter waits for it."""
    ran = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert (0, "True\n", "") == (ran.returncode, ran.stdout, ran.stderr)


def test_answer_after_the_end_of_a_loop_is_no_error(
    resolver: Resolver, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop that has waited for it is closed."""
    resolver.known["head"] = ("10.0.0.1",)
    resolver.hold("head")

    async def wait() -> None:
        with pytest.raises(Unresolved):
            await find_soon("head", SOON_S)

    asyncio.run(wait())
    resolver.release("head")
    await_end("head")

    assert ("10.0.0.1",) == find("head", 0.0).addresses
    assert [] == caplog.records


def test_localhost_needs_no_hosts_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 6761; other names do."""

    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert names.LOOPBACKS == names.look_up_now("localhost").addresses
    with pytest.raises(socket.gaierror):
        names.look_up_now("head")


def test_connection_goes_to_the_first_address_that_accepts_one(resolver: Resolver) -> None:
    """Such as 127.0.0.1, where localhost has an address of each family."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        resolver.known["head"] = ("127.0.0.2", "127.0.0.1")
        port = server.getsockname()[1]
        with names.connect("head", port, LIMIT_S) as connection:
            assert ("127.0.0.1", port) == connection.getpeername()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            names.connect("head", port, LIMIT_S)


def test_connection_to_an_unknown_name_is_an_error_of_the_system(resolver: Resolver) -> None:
    """Callers expect OSError."""
    with pytest.raises(OSError, match="nowhere cannot be resolved"):
        names.connect("nowhere", 1, LIMIT_S)
