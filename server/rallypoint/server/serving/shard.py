"""A shard: one state with its journal, its clock and its services.

A coordinator has one shard for all jobs, or, with a store that several coordinators share, some of
the shards into which jobs are divided. Shards know nothing of each other.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import grpc
from msgspec import Struct

from rallypoint.base.background import Background
from rallypoint.server.access.caller import WorkerRound
from rallypoint.server.access.protection import OPEN, Protection
from rallypoint.server.access.tokens import ResumeTokens, WorkerTokens
from rallypoint.server.access.usage.lines import Kind, Lines
from rallypoint.server.access.usage.peers import Peers
from rallypoint.server.agents.outbox import Outboxes
from rallypoint.server.agents.service import AgentService
from rallypoint.server.api.about.service import CoordinatorService
from rallypoint.server.api.barriers.service import BarrierService
from rallypoint.server.api.barriers.waits import BarrierWaits
from rallypoint.server.api.events.service import EventService
from rallypoint.server.api.events.waits import EventWaits
from rallypoint.server.api.evidence.collecting import Collecting
from rallypoint.server.api.evidence.service import EvidenceService
from rallypoint.server.api.evidence.suspicions import Suspicions
from rallypoint.server.api.jobs.service import JobService
from rallypoint.server.api.jobs.watchers import Watchers
from rallypoint.server.api.keys.service import KeyValueService
from rallypoint.server.api.keys.waits import KeyWaits
from rallypoint.server.api.nodes import NodeService
from rallypoint.server.api.workers import WorkerService
from rallypoint.server.contract.pace import Pace
from rallypoint.server.contract.routes import ROUTES
from rallypoint.server.contract.waiting import Explanations
from rallypoint.server.core.messages.inputs import Claim
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import Timing
from rallypoint.server.core.rounds.claims import may_read
from rallypoint.server.core.state.holding import Together
from rallypoint.server.core.state.state import State
from rallypoint.server.etcd.address import EtcdAddress
from rallypoint.server.journal.interface import Journal
from rallypoint.server.shell.beginning import begin
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listeners

T = TypeVar("T")


class ShardSettings(Struct, frozen=True):
    """What the shards of one coordinator have in common."""

    timing: Timing
    listens: bool = True
    """Agents of other machines may come, which know more than a new journal."""
    announces: bool = True
    """It logs what happens to its jobs."""
    is_shared: bool = False
    """This coordinator shares a store with others, so its log names the shard of each line."""


class Sharing(Struct, frozen=True):
    """How a coordinator shares a store in etcd with others."""

    store: EtcdAddress
    """Where the store is."""
    advertise: str
    """`host` or `host:port` where agents and other coordinators reach this one. Without a port: the
    port it listens on."""
    shards: int | None = None
    """Number of shards of a new store; None: the default, or as many as there are."""


class Shared(Struct, frozen=True):
    """What the shards of one coordinator share."""

    building: asyncio.Lock
    """Held while a large answer is built: one at a time."""
    peers: Peers
    """What each host uses of all shards together."""
    together: Together
    """What the jobs of all shards hold."""
    protection: Protection = OPEN
    """Of the coordinator."""


def share(protection: Protection = OPEN, lines: Lines | None = None) -> Shared:
    """Return what the shards of a new coordinator share; `lines` counts lines of the log."""
    return Shared(asyncio.Lock(), Peers(lines), Together(), protection)


class Shard:
    """A shard that this process serves."""

    def __init__(
        self,
        number: int,
        journal: Journal,
        state: State,
        coordinator: Coordinator,
        listeners: Listeners,
        watchers: Watchers,
        suspicions: Suspicions,
        services: Mapping[str, Any],
        worker_tokens: WorkerTokens,
        together: Together,
    ) -> None:
        """Hold what `open_shard` has put together; `run` does the work."""
        self.number = number
        self.state = state
        self.services = services
        """The servicers, by the full names of their services."""
        self.worker_tokens = worker_tokens
        """Of its journal."""
        self._journal = journal
        self._coordinator = coordinator
        self._listeners = listeners
        self._watchers = watchers
        self._suspicions = suspicions
        self._together = together

    async def read(self, answer: Callable[[State, int], T]) -> T:
        """Return `answer(state, now_ms)`, computed when everything it can see is in the journal.

        Raises:
            CoordinatorEnded: when no turn will come.
        """
        return await self._coordinator.read(answer)

    def changed(self) -> asyncio.Event:
        """Return an event that the next change of the state sets."""
        return self._watchers.changed

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            JournalFailed: when a batch could not be appended.
        """
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with Background(failed) as background:
            background.start(self._suspicions.run(self._coordinator))
            await self._coordinator.run()

    def knows_worker(self, claim: Claim) -> bool:
        """Return whether members of a round hold a token that an earlier coordinator has made."""
        job = self.state.jobs.get(claim.job_id)
        held = "" if job is None or job.round is None else job.round.held_token
        return bool(held) and hmac.compare_digest(held.encode(), claim.token.encode())

    def may_read(self, round: WorkerRound) -> bool:
        """Return whether workers of a round may still read their job."""
        return may_read(self.state, JobId(round.job_id), round.run, round.number)

    def halt(self) -> None:
        """End all streams and watches now; `run` has to be cancelled too."""
        self._listeners.end()

    async def close(self) -> None:
        """Close the journal; `run` has ended, and the jobs belong to another process."""
        self._together.remove(self.state.holding)
        await self._journal.close()


async def open_shard(
    number: int, journal: Journal, settings: ShardSettings, shared: Shared
) -> Shard:
    """Load a shard, which takes a new epoch.

    Args:
        number: of the shard; 0 for the only one.
        journal: of the shard, open and not loaded; the caller closes it when this fails.
        settings: of all shards.
        shared: by all shards.

    Raises:
        JournalFailed: when the journal cannot be read or written.
    """
    shard = number if settings.is_shared else None
    begun = await begin(
        journal, settings.timing, listens=settings.listens, shard=shard, together=shared.together
    )
    state, explanations = begun.state, Explanations()
    outboxes, watchers = Outboxes(), Watchers()
    barriers, keys, events = BarrierWaits(), KeyWaits(), EventWaits()
    collecting = Collecting(outboxes.collect)
    suspicions = Suspicions(collecting)
    listeners = Listeners(
        *(state, outboxes, barriers, keys, watchers, events, collecting, suspicions)
    )
    coordinator = Coordinator(
        *(state, journal, listeners, begun.clock),
        announces=settings.announces,
        is_shared=settings.is_shared,
        may_log=lambda input: shared.peers.lines.allow(outboxes.hosts_of(input), Kind.OTHER),
        may_open=lambda input: shared.peers.lines.allow(outboxes.hosts_of(input), Kind.RUN),
        stood_ms=begun.stood_ms,
    )
    tokens = WorkerTokens(journal.identity, journal.secret)
    resume = ResumeTokens(journal.secret)
    pace = Pace(shared.building)
    services = {
        "rallypoint.v1.AgentService": AgentService(
            coordinator, outboxes, state, tokens, resume, shared.peers, explanations
        ),
        "rallypoint.v1.BarrierService": BarrierService(coordinator, barriers, state, tokens, pace),
        "rallypoint.v1.CoordinatorService": CoordinatorService(
            coordinator, lambda: watchers.count + events.count, shared.protection
        ),
        "rallypoint.v1.EventService": EventService(coordinator, events, pace),
        "rallypoint.v1.EvidenceService": EvidenceService(coordinator, collecting),
        "rallypoint.v1.KeyValueService": KeyValueService(coordinator, keys, state, tokens),
        "rallypoint.v1.JobService": JobService(coordinator, watchers, explanations.explain, pace),
        "rallypoint.v1.NodeService": NodeService(coordinator, pace),
        "rallypoint.v1.WorkerService": WorkerService(coordinator, tokens),
    }
    return Shard(
        *(number, journal, state, coordinator, listeners, watchers, suspicions, services, tokens),
        shared.together,
    )


def add_services(services: Mapping[str, Any], server: grpc.aio.Server) -> None:
    """Register the servicers of a shard with a server: it serves no other one."""
    for name, servicer in services.items():
        handlers = {
            route.name: route.to_handler(getattr(servicer, route.name))
            for route in ROUTES.values()
            if route.service == name
        }
        handler = grpc.method_handlers_generic_handler(name, handlers)
        server.add_generic_rpc_handlers((handler,))
