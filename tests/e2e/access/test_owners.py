"""Several coordinators on etcd with TLS and tokens: forwarded calls, and jobs that move."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import Struct
from msgspec.structs import replace

from rallypoint.v1 import coordinator_service_pb2 as coordinator_pb2
from rallypoint.v1 import coordinator_service_pb2_grpc as coordinator_grpc
from rallypoint.v1 import job_pb2
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import job_service_pb2_grpc as jobs_grpc
from rallypoint.v1 import key_value_service_pb2 as keys_pb2
from rallypoint.v1 import key_value_service_pb2_grpc as keys_grpc
from rallypoint.wire.access import Access
from rallypoint.wire.channel import client_options
from rallypoint.wire.credentials import WORKER_TOKEN_KEY, Credentials
from rallypoint.wire.errors import unpack_details
from rallypoint.wire.resolved import resolve
from support.access.authority import Authority
from support.access.protected import AGENT, OPERATOR, VIEWER, write_rules
from support.core.key_calls import change
from support.etcd.cluster import Cluster, running
from support.etcd.coordinators import Coordinators, Seat, until, until_job
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs, is_started
from support.processes.world import World


class _Details(Struct):
    """Of a call; what gRPC's interceptors are given."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any


class _Adding(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the metadata of credentials to each call."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def _add(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), *self._credentials.metadata())
        added = _Details(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(added, request)

    intercept_unary_unary = _add  # type: ignore[assignment]  # for any kind of message
    intercept_unary_stream = _add  # type: ignore[assignment]


def open_secured(target: str, access: Access) -> grpc.Channel:
    """Return a channel whose calls prove who makes them."""
    credentials = Credentials(access)
    channel = credentials.open_channel(resolve(target), client_options())
    return grpc.intercept_channel(channel, _Adding(credentials))


def secured_jobs(access: Access) -> Callable[[str], Jobs]:
    """Return what connects to a coordinator at an address."""
    return lambda target: Jobs(target, open_secured(target, access))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One member."""
    with running(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


class Site:
    """Coordinators that share a store, and the files of all."""

    def __init__(self, world: World, etcd: Cluster, folder: Path) -> None:
        self.world = world
        authority = Authority(folder / "authority")
        pair = authority.issue("coordinator", ["127.0.0.1"])
        client = authority.issue("n1")
        self.access = Access(
            ca_file=authority.ca, cert_file=client.cert, key_file=client.key, token=OPERATOR
        )
        self.flags = (
            *(f"--tls-cert={pair.cert}", f"--tls-key={pair.key}"),
            *(f"--tls-client-ca={authority.ca}", "--require-auth"),
            f"--auth={write_rules(folder / 'auth.toml')}",
        )
        token = folder / "agent.token"
        token.write_text(AGENT, encoding="ascii")
        self.agent_flags = (
            *(f"--tls-ca={authority.ca}", f"--tls-cert={client.cert}", f"--tls-key={client.key}"),
            f"--token-file={token}",
        )
        prefix = f"/test-{secrets.token_hex(4)}"
        self.coordinators = Coordinators(world, etcd, prefix, secured_jobs(self.access))

    def channel(self, seat: Seat, token: str) -> grpc.Channel:
        """Return a channel to a coordinator with another token; empty: none."""
        return open_secured(seat.address, replace(self.access, token=token))

    def audit(self, method: str) -> list[tuple[int, str, str]]:
        """Return the audit lines about a method: coordinator, caller and outcome."""
        seats = enumerate(self.coordinators.seats)
        return [
            (number, event["caller"], event["outcome"])
            for number, seat in seats
            for event in seat.command.events("audit")
            if event["method"] == method
        ]


@pytest.fixture
def site(world: World, etcd: Cluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(world, etcd, tmp_path)
    yield made
    made.coordinators.close()


def refusal(call: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    assert isinstance(call, grpc.Call)
    return call.code(), unpack_details(tuple(call.trailing_metadata() or ())).reason


def cancel(channel: grpc.Channel, job_id: str) -> None:
    jobs_grpc.JobServiceStub(channel).CancelJob(
        jobs_pb2.CancelJobRequest(job_id=job_id, request_id="c1"), timeout=LIMIT_S
    )


@pytest.mark.long
def test_forwarded_calls_and_moved_agents(world: World, site: Site) -> None:
    """The coordinator that is called finds out who calls; the owner believes it, and no one else.

    Then the owner ends: the agents find the next one, with their tokens, and no worker ends.
    """
    all_of_them = site.coordinators
    all_of_them.start_many(2, *site.flags)
    agents = [
        world.agent(name, "--max-restarts=3", *site.agent_flags, nnodes="2", nproc=2)
        for name in ("a", "b")
    ]
    workers = world.mailbox.workers(4)
    owner, (other,) = all_of_them.owner(), all_of_them.others()
    before = until_job(other, world.job_id, lambda job: is_started(job, 1))

    with site.channel(other, VIEWER) as viewer, site.channel(other, "") as unknown:
        about = coordinator_grpc.CoordinatorServiceStub(viewer).GetCoordinator(
            coordinator_pb2.GetCoordinatorRequest(), timeout=LIMIT_S
        )
        for channel, expected in (
            (viewer, (grpc.StatusCode.PERMISSION_DENIED, "ROLE_NOT_ALLOWED")),
            (unknown, (grpc.StatusCode.UNAUTHENTICATED, "ACCESS_TOKEN_MISSING")),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                cancel(channel, world.job_id)
            assert expected == refusal(raised.value)
        metadata = ((WORKER_TOKEN_KEY, workers[0].env["RALLYPOINT_WORKER_TOKEN"]),)
        put = keys_pb2.WriteKeysRequest(
            job_id=world.job_id, writes=[change("k", put={"value": b"v"})], request_id="p1"
        )
        keys_grpc.KeyValueServiceStub(unknown).WriteKeys(put, timeout=LIMIT_S, metadata=metadata)
        found = jobs_grpc.JobServiceStub(unknown).GetJob(
            jobs_pb2.GetJobRequest(job_id=world.job_id), timeout=LIMIT_S, metadata=metadata
        )
    assert ("dash", True, True) == (
        about.caller.name,
        about.coordinator.access.client_certificates,
        about.coordinator.access.authenticates,
    )
    assert world.job_id == found.job.job_id
    assert not any("RALLYPOINT_TOKEN" in name for worker in workers for name in worker.env)

    update = jobs_pb2.UpdateJobRequest(
        job_id=world.job_id, update=jobs_pb2.JobUpdate(max_restarts=4), request_id="u1"
    )
    jobs_grpc.JobServiceStub(other.jobs.channel).UpdateJob(update, timeout=LIMIT_S)
    number = all_of_them.seats.index(other)
    until(lambda: site.audit("UpdateJob") == [(number, "ann", "OK")])

    owner.command.signal(signal.SIGTERM)
    assert 0 == owner.command.wait()
    after = until_job(other, world.job_id, is_back)
    assert before.round.header == after.round.header
    workers[1].kill()
    for worker in world.mailbox.workers(4, round=2):
        worker.tell("exit", "0")
    assert [0, 0] == [agent.wait() for agent in agents]
    outcomes = {outcome for _, caller, outcome in site.audit("Session") if caller == "trainer"}
    assert {"allowed"} == outcomes


def is_back(job: job_pb2.Job) -> bool:
    return is_started(job, 1) and all(node.attached for node in job.nodes)
