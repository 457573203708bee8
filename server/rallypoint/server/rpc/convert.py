"""Messages from agents, validated and turned into inputs of the core.

Whatever cannot be taken raises `InvalidMessage` with the path of the field; nothing is guessed.
Unknown values of an enum are refused like unspecified ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from rallypoint.server.core import inputs
from rallypoint.server.core.model import (
    Activity,
    Assignment,
    ErrorRecord,
    JobId,
    JobSpec,
    NodeName,
    RoundHeader,
    RoundReason,
    SessionId,
    WorkerExit,
)
from rallypoint.server.core.node import Claim, Identity
from rallypoint.server.core.timing import (
    BEATS_PER_LEASE,
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    Timing,
)
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2, node_service_pb2, round_pb2
from rallypoint.wire.durations import to_ms, to_unix_ms

PROTOCOL_VERSION = 1
JOB_ID_BYTES_MAX = 255
NAME_BYTES_MAX = 253
"""As long as a DNS name may be."""
WORKERS_PER_NODE_MAX = 4_096
LABELS_MAX = 32
LABEL_BYTES_MAX = 256
NODES_MAX = 16_384
FENCE_BEYOND_GRACE_MS = 3_000
"""So much longer than the grace a fence has to be, and three heartbeats if that is more: it may not
fall because of one that was late."""
DURATION_MS_MAX = 30 * 86_400_000
"""A month: longer waits are mistakes."""
MESSAGE_CHARS_MAX = 4_096
TRACEBACK_CHARS_MAX = 16_384
STDERR_CHARS_MAX = 4_096
TEXT_CHARS_MAX = 1_024
UNIX_MS_MAX = 32_503_680_000_000
"""The year 3000: what is later is no time, and calendars end in the year 9999."""
QUARANTINE_AFTER_MAX = 1_000
"""As many failures of every sick node are remembered."""

_HEXADECIMAL = frozenset("0123456789abcdef")
_DEFAULT_SPEC = JobSpec()
_TIMING = Timing()


class InvalidMessage(Exception):
    """A message from a peer that cannot be taken."""

    def __init__(self, path: str, problem: str) -> None:
        """Name the field and what is wrong with it."""
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnsupportedProtocol(Exception):
    """The agent speaks another version."""

    def __init__(self, version: int) -> None:
        """Keep the version that came."""
        super().__init__(f"protocol version {version} is not {PROTOCOL_VERSION}")
        self.version = version


def _require(holds: bool, path: str, problem: str) -> None:
    if not holds:
        raise InvalidMessage(path, problem)


def to_session(envelope: agent_pb2.SessionRequest) -> SessionId:
    """Return the session of an envelope."""
    session = envelope.session_id
    is_hex = len(session) == 32 and _HEXADECIMAL.issuperset(session)
    _require(is_hex, "session_id", "must be 32 lower-case hexadecimal digits")
    return SessionId(session)


def to_hello(envelope: agent_pb2.SessionRequest) -> inputs.Hello:
    """Return the input of the first message of a stream."""
    _require(envelope.WhichOneof("message") == "hello", "message", "the first must be hello")
    _require(envelope.connection > 0, "connection", "must be 1 or more")
    said = envelope.hello
    if said.protocol_version != PROTOCOL_VERSION:
        raise UnsupportedProtocol(said.protocol_version)
    has_held, has_ready = said.HasField("held"), said.HasField("ready")
    _require(has_held != has_ready, "hello", "exactly one of held and ready must be set")
    return inputs.Hello(
        identity=_to_identity(to_session(envelope), said),
        connection=envelope.connection,
        epoch=envelope.epoch,
        run=said.run,
        coordinator_id=said.coordinator_id,
        coordinator_durable=said.coordinator_durable,
        acknowledged=said.reports_acknowledged,
        revision=said.revision_applied,
        claim=_to_claim(said.held) if has_held else None,
        ready=_to_ready(said.ready, "hello.ready") if has_ready else None,
        draining=_to_drain(said.draining, "hello.draining") if said.HasField("draining") else None,
    )


def _to_identity(session: SessionId, said: agent_pb2.Hello) -> Identity:
    _require(bool(said.address) and len(said.address) <= NAME_BYTES_MAX, "hello.address", "missing")
    workers = said.local_world_size
    _require(
        1 <= workers <= WORKERS_PER_NODE_MAX,
        "hello.local_world_size",
        f"must be 1 to {WORKERS_PER_NODE_MAX}",
    )
    _require(len(said.role) <= NAME_BYTES_MAX, "hello.role", "is too long")
    return Identity(
        job_id=to_job_id(said.job_id, "hello.job_id"),
        session=session,
        spec=_to_spec(said.spec),
        name=NodeName(_to_name(said.node_name, "hello.node_name")),
        name_explicit=said.node_name_explicit,
        address=said.address,
        local_world_size=workers,
        role=said.role,
        labels=_to_labels(said.labels),
        node_rank=said.node_rank if said.HasField("node_rank") else None,
        launch_id=_limited(said.launch_id, NAME_BYTES_MAX),
        host_name=_limited(said.host_name, NAME_BYTES_MAX),
    )


def to_job_id(job_id: str, path: str) -> JobId:
    """Return a job id that may be used as a key everywhere."""
    _require(bool(job_id), path, "must not be empty")
    _require(len(job_id.encode()) <= JOB_ID_BYTES_MAX, path, f"longer than {JOB_ID_BYTES_MAX}")
    _require(job_id.isprintable(), path, "must be printable")
    return JobId(job_id)


def to_drain_node(request: node_service_pb2.DrainNodeRequest) -> inputs.DrainNode:
    """Return the input of a request to let a node leave."""
    return inputs.DrainNode(
        to_job_id(request.job_id, "job_id"),
        NodeName(_to_name(request.node_name, "node_name")),
        _to_ms(request.time, "time"),
        _limited(request.reason, TEXT_CHARS_MAX),
    )


def to_cordon(request: node_service_pb2.CordonNodeRequest) -> inputs.Cordon:
    """Return the input of a request to set a node aside."""
    return inputs.Cordon(
        to_job_id(request.job_id, "job_id"),
        NodeName(_to_name(request.node_name, "node_name")),
        _limited(request.reason, TEXT_CHARS_MAX),
    )


def to_uncordon(request: node_service_pb2.UncordonNodeRequest) -> inputs.Uncordon:
    """Return the input of a request to take a node back."""
    return inputs.Uncordon(
        to_job_id(request.job_id, "job_id"),
        NodeName(_to_name(request.node_name, "node_name")),
    )


def _to_name(name: str, path: str) -> str:
    _require(
        0 < len(name.encode()) <= NAME_BYTES_MAX, path, f"must have 1 to {NAME_BYTES_MAX} bytes"
    )
    _require(name.isprintable() and " " not in name, path, "must be printable, without spaces")
    return name


def _to_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    _require(len(labels) <= LABELS_MAX, "hello.labels", f"more than {LABELS_MAX}")
    for key, value in labels.items():
        fits = 0 < len(key) <= LABEL_BYTES_MAX and len(value) <= LABEL_BYTES_MAX
        _require(fits, "hello.labels", f"keys and values have at most {LABEL_BYTES_MAX} characters")
    return tuple(sorted(labels.items()))


def _to_spec(spec: job_pb2.JobSpec) -> JobSpec:
    low, high = spec.min_nodes, spec.max_nodes
    _require(1 <= low <= high <= NODES_MAX, "hello.spec", f"needs 1 <= min <= max <= {NODES_MAX}")
    default = _DEFAULT_SPEC
    taken = JobSpec(
        min_nodes=low,
        max_nodes=high,
        max_restarts=spec.max_restarts,
        join_timeout_ms=_spec_ms(spec, "join_timeout", default.join_timeout_ms),
        last_call_ms=_spec_ms(spec, "last_call", default.last_call_ms),
        settle_ms=_spec_ms(spec, "settle_time", default.settle_ms),
        grow_after_ms=_spec_ms(spec, "grow_after", default.grow_after_ms),
        grow=spec.grow if spec.HasField("grow") else default.grow,
        grace_ms=_spec_ms(spec, "grace", default.grace_ms),
        restart_backoff_ms=_spec_ms(spec, "restart_backoff", default.restart_backoff_ms),
        fence_ms=_spec_ms(spec, "fence_after", default.fence_ms),
        no_retry=_to_codes(spec.no_retry_exit_codes, "hello.spec.no_retry_exit_codes"),
        no_requeue=_to_codes(spec.no_requeue_exit_codes, "hello.spec.no_requeue_exit_codes"),
        quarantine_after=_to_quarantine_after(spec, default),
        quarantine_window_ms=_spec_ms(spec, "quarantine_window", default.quarantine_window_ms),
        quarantine_cooldown_ms=_spec_ms(
            spec, "quarantine_cooldown", default.quarantine_cooldown_ms
        ),
        max_reformations=_spec_count(spec, "max_reformations", default.max_reformations),
        crash_loop=_spec_count(spec, "crash_loop", default.crash_loop),
        progress_ms=_spec_ms(spec, "progress_after", default.progress_ms),
        heartbeat_interval_ms=_to_asked_ms(
            spec, "heartbeat_interval", HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX
        ),
        lease_ms=_to_asked_ms(spec, "lease", LEASE_MS_MIN, LEASE_MS_MAX),
    )
    _require_fence(taken)
    return taken


def _to_quarantine_after(spec: job_pb2.JobSpec, default: JobSpec) -> int:
    count = _spec_count(spec, "quarantine_after", default.quarantine_after)
    problem = f"must be at most {QUARANTINE_AFTER_MAX}"
    _require(count <= QUARANTINE_AFTER_MAX, "hello.spec.quarantine_after", problem)
    return count


def _to_asked_ms(spec: job_pb2.JobSpec, name: str, low_ms: int, high_ms: int) -> int:
    """Return what the job asks for, or 0 for what it leaves to the coordinator."""
    if not spec.HasField(name):  # type: ignore[arg-type]  # the names are this file's own
        return 0
    ms = to_ms(getattr(spec, name))
    problem = f"must be between {low_ms / 1000:g} s and {high_ms / 1000:g} s"
    _require(low_ms <= ms <= high_ms, f"hello.spec.{name}", problem)
    return ms


def _require_fence(spec: JobSpec) -> None:
    """Refuse a fence that may fall although all is well.

    The agent needs the grace, and has to be able to hear a coordinator before that.
    """
    beats_ms = BEATS_PER_LEASE * _TIMING.compute_heartbeat_ms(spec, sessions=0)
    beyond_ms = max(FENCE_BEYOND_GRACE_MS, beats_ms)
    fits = spec.fence_ms == 0 or spec.fence_ms >= spec.grace_ms + beyond_ms
    problem = f"must be at least {beyond_ms / 1000:g} s longer than the grace"
    _require(fits, "hello.spec.fence_after", problem)


def _to_codes(codes: Sequence[int], path: str) -> tuple[int, ...]:
    _require(all(1 <= code <= 255 for code in codes), path, "each must be 1 to 255")
    return tuple(sorted(set(codes)))


def _spec_count(spec: job_pb2.JobSpec, name: str, default: int) -> int:
    return getattr(spec, name) if spec.HasField(name) else default  # type: ignore[arg-type]


def _spec_ms(spec: job_pb2.JobSpec, name: str, default_ms: int) -> int:
    if not spec.HasField(name):  # type: ignore[arg-type]  # the names are this file's own
        return default_ms
    return _to_ms(getattr(spec, name), f"hello.spec.{name}")


def _to_ms(duration: Duration, path: str) -> int:
    ms = to_ms(duration)
    _require(0 <= ms <= DURATION_MS_MAX, path, "must be between 0 and 30 days")
    return ms


_HELD_STATES = {
    node_pb2.NODE_STATE_ASSIGNED: Activity.ASSIGNED,
    node_pb2.NODE_STATE_STARTED: Activity.STARTED,
    node_pb2.NODE_STATE_SUCCEEDED: Activity.SUCCEEDED,
    node_pb2.NODE_STATE_FAILED: Activity.FAILED,
    node_pb2.NODE_STATE_STOPPING: Activity.UNREADY,
    node_pb2.NODE_STATE_BLOCKED: Activity.BLOCKED,
}

_REASONS = {
    round_pb2.ROUND_REASON_UNSPECIFIED: RoundReason.UNKNOWN,
    round_pb2.ROUND_REASON_FIRST: RoundReason.FIRST,
    round_pb2.ROUND_REASON_WORKER_FAILED: RoundReason.WORKER_FAILED,
    round_pb2.ROUND_REASON_NODE_LOST: RoundReason.NODE_LOST,
    round_pb2.ROUND_REASON_NODE_LEFT: RoundReason.NODE_LEFT,
    round_pb2.ROUND_REASON_GROWTH: RoundReason.GROWTH,
    round_pb2.ROUND_REASON_START_OVERDUE: RoundReason.START_OVERDUE,
    round_pb2.ROUND_REASON_DRAINED: RoundReason.DRAINED,
}


def _to_claim(held: agent_pb2.HeldRound) -> Claim:
    path = "hello.held"
    header, place = held.header, held.assignment
    _require(held.state in _HELD_STATES, f"{path}.state", "is none that a held round can have")
    _require(header.number > 0, f"{path}.header.number", "must be 1 or more")
    _require(header.run > 0, f"{path}.header.run", "must be 1 or more")
    _require(header.reason in _REASONS, f"{path}.header.reason", "is unknown")
    for name in ("group_rank", "first_rank", "first_role_rank"):
        _require(place.HasField(name), f"{path}.assignment.{name}", "is missing")
    _require(
        place.group_rank < header.group_world_size
        and 1 <= place.local_world_size <= WORKERS_PER_NODE_MAX
        and place.first_rank + place.local_world_size <= header.world_size,
        f"{path}.assignment",
        "does not fit into the round",
    )
    return Claim(
        header=RoundHeader(
            number=header.number,
            run=header.run,
            world_size=header.world_size,
            group_world_size=header.group_world_size,
            master_addr=header.master_addr,
            master_port=header.master_port,
            restart_count=header.restart_count,
            reason=_REASONS[header.reason],
            epoch=header.epoch,
        ),
        assignment=Assignment(
            group_rank=place.group_rank,
            first_rank=place.first_rank,
            local_world_size=place.local_world_size,
            role=place.role,
            first_role_rank=place.first_role_rank,
            role_world_size=place.role_world_size,
        ),
        activity=_HELD_STATES[held.state],
        pids=tuple(worker.pid for worker in held.workers),
        exits=_to_exits(
            (worker for worker in held.workers if worker.HasField("exit")),
            f"{path}.workers",
            place.local_world_size,
        ),
    )


def to_report(envelope: agent_pb2.SessionRequest, local_world_size: int) -> inputs.Report | None:
    """Return the input of a numbered report, or None for a heartbeat.

    Args:
        envelope: any message after the first.
        local_world_size: number of workers of the node, which bounds local ranks.
    """
    kind = envelope.WhichOneof("message")
    if kind == "heartbeat":
        return None
    sender = inputs.Sender(
        SessionId(envelope.session_id), envelope.connection, envelope.epoch, envelope.sequence
    )
    _require(envelope.sequence > 0, "sequence", "a report needs a number")
    match kind:
        case "ready":
            return inputs.Ready(sender, _to_ready(envelope.ready, "ready"))
        case "started":
            pids = tuple(envelope.started.pids)
            _require(len(pids) == local_world_size, "started.pids", "must be one per worker")
            return inputs.Started(sender, envelope.started.round, pids)
        case "refused":
            refused = envelope.refused
            _require(refused.reason != 0, "refused.reason", "is missing")
            leaving = refused.reason == agent_pb2.REFUSED_REASON_LEAVING
            text = _limited(refused.text, TEXT_CHARS_MAX)
            return inputs.Refused(sender, refused.round, leaving, text)
        case "exited":
            exits = _to_exits(envelope.exited.workers, "exited.workers", local_world_size)
            _require(bool(exits), "exited.workers", "must not be empty")
            return inputs.Exited(sender, envelope.exited.round, exits)
        case "succeeded":
            return inputs.Succeeded(sender, envelope.succeeded.round)
        case "blocked":
            return inputs.Blocked(sender, envelope.blocked.round, tuple(envelope.blocked.pids[:64]))
        case "draining":
            return inputs.Draining(sender, *_to_drain(envelope.draining, "draining"))
        case "goodbye":
            return inputs.Goodbye(sender, _limited(envelope.goodbye.text, TEXT_CHARS_MAX))
        case _:
            raise InvalidMessage("message", "is missing, unknown, or a second hello")


def to_heartbeat(envelope: agent_pb2.SessionRequest) -> inputs.Heartbeat:
    """Return the input of a heartbeat."""
    sender = inputs.Sender(SessionId(envelope.session_id), envelope.connection, envelope.epoch)
    return inputs.Heartbeat(sender, envelope.heartbeat.number)


def _to_drain(draining: agent_pb2.Draining, path: str) -> tuple[int, str]:
    time_ms = _to_ms(draining.time_left, f"{path}.time_left")
    return time_ms, _limited(draining.reason, TEXT_CHARS_MAX)


def _to_ready(ready: agent_pb2.Ready, path: str) -> inputs.ReadyPort:
    _require(0 < ready.master_port < 65_536, f"{path}.master_port", "must be 1 to 65535")
    return inputs.ReadyPort(ready.round, ready.master_port)


def _to_exits(
    workers: Iterable[node_pb2.Worker], path: str, local_world_size: int
) -> tuple[WorkerExit, ...]:
    found: dict[int, WorkerExit] = {}
    for worker in workers:
        _require(worker.HasField("local_rank"), f"{path}.local_rank", "is missing")
        rank = worker.local_rank
        _require(
            rank < local_world_size, f"{path}.local_rank", f"{rank} is not below {local_world_size}"
        )
        _require(rank not in found, f"{path}.local_rank", f"{rank} comes twice")
        found[rank] = _to_exit(worker, f"{path}.exit")
    return tuple(found.values())


def _to_exit(worker: node_pb2.Worker, path: str) -> WorkerExit:
    said = worker.exit
    has_code, has_signal = said.HasField("exit_code"), said.HasField("signal")
    _require(has_code != has_signal, path, "needs exactly one of exit_code and signal")
    return WorkerExit(
        local_rank=worker.local_rank,
        pid=worker.pid,
        exit_code=said.exit_code if has_code else None,
        signal=said.signal if has_signal else None,
        agent_signalled_first=said.agent_signalled_first,
        ago_ms=_to_ms(said.ago, f"{path}.ago"),
        ran_ms=_to_ms(said.ran, f"{path}.ran"),
        error=_to_error(said.error, f"{path}.error") if said.HasField("error") else None,
        stderr_tail=said.stderr_tail[-STDERR_CHARS_MAX:],
        signalled_before_ms=_to_ms(said.signalled_before, f"{path}.signalled_before")
        if said.HasField("signalled_before")
        else None,
        oom_killed=said.oom_killed,
        failed_ms=_to_unix_ms(said.time) if said.HasField("time") else None,
        error_file=_limited(said.error_file, TEXT_CHARS_MAX),
    )


def _to_error(error: node_pb2.ErrorRecord, path: str) -> ErrorRecord:
    before_ms = None
    if error.HasField("before_exit"):
        before_ms = _to_ms(error.before_exit, f"{path}.before_exit")
    return ErrorRecord(
        message=_limited(error.message, MESSAGE_CHARS_MAX),
        traceback=error.traceback[-TRACEBACK_CHARS_MAX:],
        before_exit_ms=before_ms,
    )


def _to_unix_ms(time: Timestamp) -> int | None:
    """Return a time for people to read; one that is none is no reason to refuse a report."""
    unix_ms = to_unix_ms(time)
    return unix_ms if 0 <= unix_ms <= UNIX_MS_MAX else None


def _limited(text: str, length_max: int) -> str:
    return text[:length_max]
