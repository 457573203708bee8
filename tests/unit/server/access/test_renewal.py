"""Certificates and tokens are renewed while clients call: no valid one is ever refused."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from rallypoint.base.background import TaskEnded
from rallypoint.server.access import protecting
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.wire import listening
from support.access.authority import Pair
from support.access.protected import HOST, Site, bearer, entry, protected_site, write_rules
from support.core.served import LIMIT_S

OLD, NEW = "the-old-token-012345", "the-new-token-012345"
CLIENTS = 8


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the files all the time."""
    monkeypatch.setattr(protecting, "LOOK_S", 0.02)
    monkeypatch.setattr("rallypoint.wire.credentials.LOOK_S", 0.0)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """Return the events that are logged, as they come."""
    with capture_logs() as lines:
        yield lines


async def call_once(site: Site, pair: Pair | None, token: str) -> str:
    """Open a connection and make a call; return how it has ended, and "" if well."""
    async with site.channel(pair) as channel:
        stub = coordinator_grpc.CoordinatorServiceStub(channel)
        try:
            await stub.GetCoordinator(
                coordinator_pb2.GetCoordinatorRequest(), timeout=LIMIT_S, metadata=bearer(token)
            )
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""


def der_of(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pair.cert).read_text(encoding="ascii"))


async def until(lines: list[Any], event: str, count: int = 1) -> None:
    """Wait until an event was logged so often."""
    async with asyncio.timeout(LIMIT_S):
        while [line["event"] for line in lines].count(event) < count:  # noqa: ASYNC110  # a list
            await asyncio.sleep(0.01)


async def test_no_valid_client_is_refused(tmp_path: Path, lines: list[Any]) -> None:
    """While the certificate is renewed three times, and the token is replaced."""
    rules = entry("dash", "viewer", OLD)
    async with protected_site(tmp_path, rules=rules) as site:
        pair = site.authority.issue("a-client")
        token, faults, calls, ended = [OLD], list[str](), [0], asyncio.Event()

        async def keep_calling() -> None:
            while not ended.is_set():
                fault = await call_once(site, pair, token[0])
                calls[0] += 1
                if fault:
                    faults.append(fault)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(keep_calling())
            for count in range(1, 4):
                fresh = site.authority.issue("coordinator", [HOST])
                expected = der_of(fresh)
                site.server.replace_with(fresh)
                await until(lines, "certificate_renewed", count)

                assert expected == await serial_of_client(site, pair)
            write_rules(site.auth, entry("dash", "viewer", OLD, NEW))
            await until(lines, "auth_file_renewed", 1)
            token[0] = NEW
            before = calls[0]
            async with asyncio.timeout(LIMIT_S):
                while calls[0] < before + 2 * CLIENTS:  # noqa: ASYNC110  # all use the new one
                    await asyncio.sleep(0.01)
            write_rules(site.auth, entry("dash", "viewer", NEW))
            await until(lines, "auth_file_renewed", 2)
            late = await call_once(site, pair, OLD)
            ended.set()

    assert [] == faults
    assert calls[0] > 4 * CLIENTS
    assert late.startswith("UNAUTHENTICATED")


async def serial_of_client(site: Site, pair: Pair) -> bytes:
    """Return the certificate that the coordinator shows to a client with one."""
    context = ssl.create_default_context(cafile=site.authority.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # as gRPC does: see reaching.py
    context.load_cert_chain(pair.cert, pair.key)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(HOST, site.running.port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def spoil(site: Site, fault: str) -> None:
    """Replace the certificate by what is none, or by one of another key."""
    other = Path(site.authority.issue("coordinator", [HOST]).cert).read_bytes()
    Path(site.server.cert).write_bytes(b"not a certificate" if fault == "text" else other)


@pytest.mark.parametrize("fault", ["text", "pair"])
async def test_bad_certificate_keeps_the_one_before(
    tmp_path: Path, lines: list[Any], fault: str
) -> None:
    """One warning that names the file, and nothing of what it has."""
    async with protected_site(tmp_path) as site:
        pair = site.authority.issue("a-client")
        good = der_of(site.server)
        spoil(site, fault)
        await until(lines, "certificate_rejected")

        assert good == await serial_of_client(site, pair)
        fresh = site.authority.issue("coordinator", [HOST])
        expected = der_of(fresh)
        site.server.replace_with(fresh)
        await until(lines, "certificate_renewed")
        assert expected == await serial_of_client(site, pair)

    rejected = [line for line in lines if line["event"] == "certificate_rejected"]
    assert [True] == [site.server.cert in line["why"] for line in rejected]


UNREADABLE = {
    "a number of 5,000 digits": f"[[token]]\nname = {'9' * 5_000}\n",
    "2,000 brackets": f"[[token]]\nname = {'[' * 2_000}\n",
    "a month that is none": "[[token]]\nexpires = 2027-13-01T00:00:00Z\n",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
async def test_file_that_cannot_be_parsed_changes_nothing(
    tmp_path: Path, lines: list[Any], text: str
) -> None:
    """The log says so, the rules before count, and those of the next good file after it."""
    async with protected_site(tmp_path, rules=entry("dash", "viewer", OLD)) as site:
        pair = site.authority.issue("a-client")
        write_rules(site.auth, text)
        await until(lines, "auth_file_rejected")

        assert "" == await call_once(site, pair, OLD)
        write_rules(site.auth, entry("dash", "viewer", NEW))
        await until(lines, "auth_file_renewed")
        assert (await call_once(site, pair, OLD)).startswith("UNAUTHENTICATED")
        assert "" == await call_once(site, pair, NEW)


async def test_look_that_fails_ends_no_other_look(
    tmp_path: Path, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in the look at the certificate has one line; the auth file is still looked at."""

    def fail(_: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(listening.Renewal, "look", fail)
    async with protected_site(tmp_path, rules=entry("dash", "viewer", OLD)) as site:
        await until(lines, "look_failed")
        for count, token in enumerate((NEW, OLD), 1):
            write_rules(site.auth, entry("dash", "viewer", token))
            await until(lines, "auth_file_renewed", count)

    assert 1 == [line["event"] for line in lines].count("look_failed")


async def test_coordinator_fails_when_nothing_looks_at_the_files_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who runs it hears at once that its task has ended, whatever has ended it."""

    async def end(*_: object) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(protecting, "keep_looking", end)
    async with protected_site(tmp_path) as site, asyncio.timeout(LIMIT_S):
        with pytest.raises(TaskEnded):
            await site.running.failed


@pytest.mark.parametrize(
    ("begins", "days", "event"),
    [
        (-10, -1, "certificate_expired"),
        (1, 30, "certificate_not_begun"),
        (-10, 13, "certificate_nearly_expired"),
    ],
)
async def test_certificate_that_is_not_valid_has_a_warning(
    tmp_path: Path, lines: list[Any], begins: int, days: int, event: str
) -> None:
    """At the start, once; a renewed one that is valid has none."""
    async with protected_site(tmp_path, begins=begins, days=days) as site:
        await until(lines, event)
        site.server.replace_with(site.authority.issue("coordinator", [HOST]))
        await until(lines, "certificate_renewed")

    found = [line for line in lines if line["event"] == event]
    assert [("warning", site.server.cert)] == [(one["log_level"], one["path"]) for one in found]
    assert "renew" in found[0]["then"] or "clock" in found[0]["then"]
