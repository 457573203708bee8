"""Finds the owner of what a call is about, and lets it answer.

The shard of a job follows from its id. A shard of this process answers itself. A call about another
one is forwarded to its owner, once: who gets a forwarded call and is not the owner refuses it, and
the client tries again when the directory has caught up. A stream of an agent is not forwarded: the
agent learns where the owner is, so that its heartbeats depend on one coordinator only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.rpc.status_pb2 import Status

from rallypoint.server.access.marks import marked_shard, owned
from rallypoint.server.access.protection import OPEN, Protection, describe
from rallypoint.server.access.usage.peers import Peers, Stream
from rallypoint.server.access.usage.stalls import Stalls
from rallypoint.server.agents.relays.carrying import carry
from rallypoint.server.agents.relays.seats import ServingShard
from rallypoint.server.agents.service import AgentService, accept
from rallypoint.server.api.about.service import start_now
from rallypoint.server.contract.calls import CallRefused, Context
from rallypoint.server.contract.errors import (
    no_owner_status,
    not_owner_status,
    store_status,
)
from rallypoint.server.contract.routes import ROUTES, Route, is_about_all
from rallypoint.server.core.model.shards import shard_of
from rallypoint.server.fleet.directory import Directory, Local, LocalShard
from rallypoint.server.fleet.forwarding import Forwarder
from rallypoint.server.fleet.merging.about import get_coordinator
from rallypoint.server.fleet.merging.events import list_events, watch_events
from rallypoint.server.fleet.merging.jobs import list_jobs, watch_jobs
from rallypoint.server.fleet.merging.parts import ShardCalls
from rallypoint.server.shell.coordinator import CoordinatorEnded
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import calls_pb2

AGENT_SERVICE = "rallypoint.v1.AgentService"


class Router(grpc.GenericRpcHandler):
    """Handles every method of the contract."""

    def __init__(
        self,
        directory: Directory,
        local: Local,
        forwarder: Forwarder,
        peers: Peers,
        protection: Protection = OPEN,
    ) -> None:
        """Make the handlers.

        Args:
            directory: knows the owners.
            local: the shards of this process.
            forwarder: makes calls to the others.
            peers: what each host uses of all shards of this process.
            protection: of this coordinator.
        """
        self._directory = directory
        self._local = local
        self._forwarder = forwarder
        self._peers = peers
        self._stalls = Stalls()
        self._parts = ShardCalls(directory, local, forwarder)
        self._protection = protection
        self._start = start_now()
        self._handlers = {path: self._to_handler(route) for path, route in ROUTES.items()}

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of a method, or None when the contract has no such method."""
        return self._handlers.get(handler_call_details.method)

    def _to_handler(self, route: Route) -> grpc.RpcMethodHandler[Any, Any]:
        async def unary(request: Any, context: Context) -> Any:
            self._require_store()
            if is_about_all(route, request) and marked_shard(context) is None:
                return await self._answer_whole(route, request, context)
            return await self._answer(route, request, context)

        async def stream(request: Any, context: Context) -> None:
            self._require_store()
            if is_about_all(route, request) and marked_shard(context) is None:
                await self._write_whole(route, request, context)
            else:
                await self._answer_all(route, request, context)

        if route.subject == calls_pb2.SUBJECT_HELLO:
            return route.to_handler(self._session)
        if route.subject == calls_pb2.SUBJECT_RELAY:
            return route.to_handler(self._relay)
        return route.to_handler(stream if route.is_stream else unary)

    async def _answer_whole(self, route: Route, request: Any, context: Context) -> Any:
        """Return the answer to a call about all jobs, which no single shard can give."""
        match route.name:
            case "GetCoordinator":
                about = await get_coordinator(
                    self._parts, route, self._directory, self._start, context
                )
                describe(about, self._protection)
                return about
            case "ListJobs":
                return await list_jobs(self._parts, route, request, context)
            case "ListEvents":
                return await list_events(self._parts, route, request, context)
        raise AssertionError(f"{route.path} is not about all jobs")

    async def _write_whole(self, route: Route, request: Any, context: Context) -> None:
        """Write the answers to a watch of all jobs until it ends."""
        watches: dict[str, Any] = {"WatchJobs": watch_jobs, "WatchEvents": watch_events}
        # A status that came while the first answer is being sent would bring the initial metadata a
        # second time. gRPC refuses that, and the client would never learn of the end.
        await context.send_initial_metadata(())
        async with self._stalls.writing(context) as write:

            async def take(shard: int, answer: Any) -> None:
                await write(answer)

            await watches[route.name](self._parts, route, request, context, take)

    def _require_store(self) -> None:
        """Refuse calls while it is not known which shards there are.

        Raises:
            CallRefused: when it is not.
        """
        if not self._directory.shard_count:
            raise CallRefused(store_status(self._directory.trouble()))

    async def _answer(self, route: Route, request: Any, context: Context) -> Any:
        """Return the answer of the owner of a job, encoded or not."""
        number = self._shard_of(route, request, context)
        found = self._find(number, context)
        if isinstance(found, str):
            encoded = request.SerializeToString()
            return await self._forwarder.call(route, number, found, encoded, context)
        serve = getattr(found.services[route.service], route.name)
        answer = await serve(request, self._owned(number, found, context))
        if self._local.find(number) is not found:
            raise CoordinatorEnded  # it may know less than the next owner
        return answer

    async def _answer_all(self, route: Route, request: Any, context: Context) -> None:
        """Write the answers of the owner of a job."""
        number = self._shard_of(route, request, context)
        found = self._find(number, context)
        if isinstance(found, str):
            encoded = request.SerializeToString()
            answers = self._forwarder.stream(route, number, found, encoded, context)
            async with self._stalls.writing(context) as write, aclosing(answers):
                async for answer in answers:
                    await write(answer)
            return
        serve = getattr(found.services[route.service], route.name)
        await serve(request, self._owned(number, found, context))

    def _owned(self, number: int, shard: LocalShard, context: Context) -> Any:
        """Return the context for a servicer of a shard."""
        return owned(context, lambda: self._local.find(number) is shard, self._peers)

    def _shard_of(self, route: Route, request: Any, context: Context) -> int:
        """Return the shard that a call is about; one about all jobs was forwarded for a shard."""
        marked = marked_shard(context)
        if marked is not None and is_about_all(route, request):
            return marked
        return shard_of(request.job_id, self._directory.shard_count)

    def _find(self, shard: int, context: Context) -> LocalShard | str:
        """Return the shard that a call is about, or the `host:port` of its owner.

        Raises:
            CallRefused: when no one does.
        """
        local = self._local.find(shard)
        if local is not None:
            return local
        address = self._directory.owner_of(shard)
        if address is None or marked_shard(context) is not None:
            raise CallRefused(no_owner_status(shard, self._directory.trouble(shard)))
        return address

    async def _session(self, requests: AsyncIterator[Any], context: Context) -> None:
        await accept(context, self._peers, self._find_agents)

    async def _relay(self, requests: AsyncIterator[Any], context: Context) -> None:
        await carry(context, self._peers, self._find_place)

    def _find_place(self, first: agent_pb2.SessionRequest) -> ServingShard | Status:
        """Return who serves an agent that a relay carries, or how its stream ends."""
        found = self._find_agents(first)
        return found if isinstance(found, Status) else found.place

    def _find_agents(self, first: agent_pb2.SessionRequest) -> _Session | Status:
        """Return who serves the agent that has sent this message, or how its stream ends."""
        if not self._directory.shard_count:
            return store_status(self._directory.trouble())
        shard = shard_of(first.hello.job_id, self._directory.shard_count)
        local = self._local.find(shard)
        if local is not None:
            return _Session(local, lambda: self._local.find(shard) is local, self._peers)
        address = self._directory.owner_of(shard)
        if address is None:
            return no_owner_status(shard, self._directory.trouble(shard))
        directory = self._directory
        return not_owner_status(address, directory.coordinator_id, directory.trouble())


class _Session:
    """The agents of one shard."""

    def __init__(self, shard: LocalShard, owns: Callable[[], bool], peers: Peers) -> None:
        self._shard = shard
        self._owns = owns
        self._peers = peers

    @property
    def place(self) -> ServingShard:
        """Return what a relay's stream needs of the shard."""
        service: AgentService = self._shard.services[AGENT_SERVICE]
        return ServingShard(service.connections, self._owns)

    async def serve(
        self, first: agent_pb2.SessionRequest, context: Any, stream: Stream
    ) -> Status | None:
        service: AgentService = self._shard.services[AGENT_SERVICE]
        return await service.serve(first, owned(context, self._owns, self._peers), stream)
