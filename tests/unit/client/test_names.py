"""Coordinators that are given by name: both forms of the client look it up, again when it moves."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from rallypoint.client import AsyncClient, Client, errors
from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import worker_service_pb2 as workers_pb2
from rallypoint.wire.access import PLAIN, Access
from support.access.authority import Authority
from support.access.greeters import greeting
from support.clients.scripted import LIMIT_S, Script
from support.machines.resolver import Resolver

FORMS = pytest.mark.parametrize("form", ["sync", "aio"])
ANSWER = coordinator_pb2.GetCoordinatorResponse()
HOST = "127.0.0.1"


@asynccontextmanager
async def client_of(
    form: str, target: str, access: Access = PLAIN, limit_s: float = LIMIT_S
) -> AsyncIterator[Any]:
    """Yield what asks the coordinator about itself."""
    kind: Any = AsyncClient if form == "aio" else Client
    client = kind(target, access=access, limit_s=limit_s)

    async def ask() -> Any:
        if form == "aio":
            return await client.get_coordinator()
        return await asyncio.to_thread(client.get_coordinator)

    try:
        yield ask
    finally:
        closed = client.close()
        if closed is not None:
            await closed


@FORMS
async def test_name_server_that_is_slow_delays_a_call(form: str, resolver: Resolver) -> None:
    """It waits for the address as it waits for a connection."""
    script = Script()
    script.answers["GetCoordinator"] = [ANSWER]
    resolver.known["head"] = (HOST,)
    resolver.hold("head")
    with greeting(handler=script) as port:
        async with client_of(form, f"head:{port}") as ask, asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(ask())
            assert await asyncio.to_thread(resolver.was_asked.wait, LIMIT_S)
            resolver.release("head")

    assert ANSWER == asking.result()
    assert ["head"] == resolver.asked[:1]


@FORMS
async def test_call_says_why_a_name_has_no_address(form: str, resolver: Resolver) -> None:
    """When it gives up."""
    async with client_of(form, "haed:7", limit_s=0.1) as ask:
        with pytest.raises(errors.Unavailable) as given_up:
            await ask()

    text = "coordinator at haed:7: haed cannot be resolved: is it spelled right?; gave up after 0.1"
    assert str(given_up.value).startswith(text)


@FORMS
async def test_certificate_is_verified_for_the_name(
    form: str, resolver: Resolver, tmp_path: Path
) -> None:
    """Not for the address that the name has."""
    resolver.known |= {"head": (HOST,), "other": (HOST,)}
    authority, script = Authority(tmp_path), Script()
    script.answers["GetCoordinator"] = [ANSWER]
    access = Access(ca_file=authority.ca)
    with greeting(authority.issue("c", ["head"]), handler=script) as port:
        async with client_of(form, f"head:{port}", access) as ask:
            assert ANSWER == await ask()
        async with client_of(form, f"other:{port}", access) as ask:
            with pytest.raises(errors.HandshakeFailed, match="certificate is not for other"):
                await ask()


@FORMS
async def test_coordinator_that_has_moved_is_found(form: str, resolver: Resolver) -> None:
    """Its name has another address: nothing listens at the old one any more."""
    before, after = Script(), Script()
    for script in (before, after):
        script.answers["GetCoordinator"] = [ANSWER]
    resolver.known["head"] = ("127.0.0.2",)
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((HOST, 0))
        port = kept.getsockname()[1]
        async with client_of(form, f"head:{port}") as ask:
            with greeting(handler=before, at=f"127.0.0.2:{port}"):
                await ask()
            resolver.known["head"] = (HOST,)
            with greeting(handler=after, at=f"{HOST}:{port}"):
                assert ANSWER == await ask()

    assert [1, 1] == [len(script.requests["GetCoordinator"]) for script in (before, after)]


@FORMS
async def test_localhost_is_whichever_family_listens(form: str, resolver: Resolver) -> None:
    """The other one refuses the connection."""
    resolver.known["localhost"] = ("::1", HOST)
    script = Script()
    script.answers["GetCoordinator"] = [ANSWER]
    with greeting(handler=script) as port:
        async with client_of(form, f"localhost:{port}") as ask:
            assert ANSWER == await ask()


def test_report_of_progress_waits_for_no_name_server(resolver: Resolver) -> None:
    """It fails; the look-up still runs for the next one."""
    script = Script()
    script.answers["ReportProgress"] = [workers_pb2.ReportProgressResponse()]
    resolver.known["head"] = (HOST,)
    resolver.hold("head")
    with greeting(handler=script) as port, Client(f"head:{port}", token="secret") as client:
        report, heard = client.begin_report("j", 1, LIMIT_S), threading.Event()
        report.add_done_callback(lambda _: heard.set())
        assert (report.done(), report.code()) == (True, grpc.StatusCode.UNAVAILABLE)
        assert heard.is_set()
        with pytest.raises(grpc.RpcError, match="head is not resolved"):
            report.result(timeout=0.0)
        resolver.release("head")
        while (report := client.begin_report("j", 2, LIMIT_S)).done():
            if report.code() is not grpc.StatusCode.UNAVAILABLE:
                break  # it was answered before we looked

        assert workers_pb2.ReportProgressResponse() == report.result(LIMIT_S)


async def test_watch_goes_on_where_the_coordinator_is_now(resolver: Resolver) -> None:
    """Also when its name is unknown for a moment in between."""
    answer = jobs_pb2.WatchJobResponse(revision=4, missing=True)
    script = Script()
    script.answers["WatchJob"] = [[answer]]
    with greeting(handler=script) as port:
        async with AsyncClient(f"head:{port}", access=PLAIN, limit_s=LIMIT_S) as client:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(_first(client))
                assert await asyncio.to_thread(resolver.was_asked.wait, LIMIT_S)
                resolver.known["head"] = (HOST,)

    assert answer == watching.result()


async def _first(client: AsyncClient) -> Any:
    async with client.watch_job("j") as watch:
        async for answer in watch:
            return answer
    return job_pb2.Job()
