"""The options of a job, as `RendezvousParameters.config` holds them.

Keys of torch's back ends keep their meaning. The others are named like the flags of `node-agent`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from rallypoint.agent.preload.command import Preload
from rallypoint.agent.preload.names import AUTO, parse_calls, parse_modules
from rallypoint.base.limits import (
    HEARTBEAT_MS_MAX,
    HEARTBEAT_MS_MIN,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
)
from rallypoint.base.log import get_logger
from rallypoint.v1 import job_pb2
from rallypoint.wire.durations import to_duration

log = get_logger()

INTERVAL, ATTEMPTS = "keep_alive_interval", "keep_alive_max_attempt"
INTERVAL_MS, ATTEMPTS_COUNT = 5_000, 3
"""torch's defaults, for when only one of the two is given."""
UNUSED = frozenset(
    {
        "ca_cert",
        "cacert",
        "cert",
        "close_timeout",
        "etcd_prefix",
        "heartbeat",
        "heartbeat_timeout",
        "key",
        "protocol",
        "read_timeout",
        "ssl_cert",
        "ssl_cert_key",
        "store_type",
        "use_libuv",
    }
)
"""Settings of torch's stores, which do not exist here."""


class JobOptions(Struct, frozen=True, kw_only=True):
    """How a job restarts, grows and notices failures. Times are in milliseconds."""

    join_timeout: int = 600_000
    last_call: int = 5_000
    settle_time: int = 5_000
    grow_after: int = 10_000
    grow: bool = True
    restart_backoff: int = 1_000
    fence_after: int = 0
    no_retry_exit_codes: tuple[int, ...] = ()
    no_requeue_exit_codes: tuple[int, ...] = ()
    """Only for `node-agent`, whose exit code tells its scheduler."""
    quarantine_after: int = 3
    quarantine_window: int = 600_000
    quarantine_cooldown: int = 300_000
    max_reformations: int = 10
    crash_loop: int = 5
    progress_after: int = 300_000
    heartbeat_interval: int | None = None
    lease: int | None = None
    coordinator_timeout: int | None = None
    """How long this node waits for a coordinator without running workers; None: join_timeout."""
    node_name: str = ""
    """Name of this node; empty: the host's, made unique."""
    rank: int | None = None
    """Number that this node asks for."""
    preload: tuple[str, ...] = ()
    """Modules that one process imports, from which workers are forked, or only "auto"; none: each
    worker imports by itself."""
    preload_call: tuple[str, ...] = ()
    """Functions that it calls then, each as "pkg.mod:function"."""

    def preloaded(self) -> Preload | None:
        """Return what is preloaded on this node; None: nothing."""
        if not (self.preload or self.preload_call):
            return None
        is_auto = self.preload == (AUTO,)
        names = () if is_auto else self.preload
        return Preload(modules=names, calls=self.preload_call, is_auto=is_auto)

    def spec(
        self, *, min_nodes: int, max_nodes: int, max_restarts: int, shutdown_timeout_ms: int
    ) -> job_pb2.JobSpec:
        """Return the specification of the job."""
        return job_pb2.JobSpec(
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            max_restarts=max_restarts,
            join_timeout=to_duration(self.join_timeout),
            last_call=to_duration(self.last_call),
            settle_time=to_duration(self.settle_time),
            grow_after=to_duration(self.grow_after),
            grow=self.grow,
            shutdown_timeout=to_duration(shutdown_timeout_ms),
            restart_backoff=to_duration(self.restart_backoff),
            fence_after=to_duration(self.fence_after) if self.fence_after else None,
            no_retry_exit_codes=self.no_retry_exit_codes,
            no_requeue_exit_codes=self.no_requeue_exit_codes,
            quarantine_after=self.quarantine_after,
            quarantine_window=to_duration(self.quarantine_window),
            quarantine_cooldown=to_duration(self.quarantine_cooldown),
            max_reformations=self.max_reformations,
            crash_loop=self.crash_loop,
            progress_after=to_duration(self.progress_after),
            heartbeat_interval=_duration(self.heartbeat_interval),
            lease=_duration(self.lease),
        )


def _duration(ms: int | None) -> Any:
    """Return a duration for the specification; None: the coordinator's default."""
    return None if ms is None else to_duration(ms)


def parse_options(config: Mapping[str, Any]) -> JobOptions:
    """Return the options that a configuration means; keys without a meaning are logged.

    Raises:
        ValueError: a value does not fit its key.
    """
    fields: dict[str, Any] = {}
    # From the vaguer to the clearer key: the later one wins.
    for key, name in (("timeout", "join_timeout"), ("last_call_timeout", "last_call")):
        if config.get(key) is not None:
            fields[name] = _read(key, config[key], _KEYS[name])
    for key, parse in _KEYS.items():
        if config.get(key) is not None:
            fields[key] = _read(key, config[key], parse)
    if INTERVAL in config or ATTEMPTS in config:
        # torch takes any value, so use the nearest that a job may have.
        interval_ms = _read(INTERVAL, config.get(INTERVAL, INTERVAL_MS / 1000), _milliseconds)
        attempts = _read(ATTEMPTS, config.get(ATTEMPTS, ATTEMPTS_COUNT), _count)
        fields.setdefault("lease", min(max(interval_ms * attempts, LEASE_MS_MIN), LEASE_MS_MAX))
        if INTERVAL in config:
            beat_ms = min(max(interval_ms, HEARTBEAT_MS_MIN), HEARTBEAT_MS_MAX)
            fields.setdefault("heartbeat_interval", beat_ms)
    known = _KEYS.keys() | {"timeout", "last_call_timeout", INTERVAL, ATTEMPTS, "is_host"}
    unused, unknown = sorted(UNUSED & config.keys()), sorted(config.keys() - known - UNUSED)
    if unused:
        log.info("rdzv_configs_ignored", keys=unused, why="no store is used")
    if unknown:
        log.warning("rdzv_configs_not_recognized", keys=unknown, then="they have no effect")
    return JobOptions(**fields)


def _read(key: str, value: Any, parse: Callable[[Any], Any]) -> Any:
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rendezvous option {key}: {value!r}: {error}") from None


def _milliseconds(value: Any) -> int:
    seconds = float(value)
    if not 0 <= seconds < 1e9:
        raise ValueError("not a number of seconds from 0 on")
    return round(seconds * 1000)


def _positive_milliseconds(value: Any) -> int:
    if not (milliseconds := _milliseconds(value)):
        raise ValueError("no time to wait: give more than 0 s")
    return milliseconds


def _count(value: Any) -> int:
    number = int(value)
    if number < 0:
        raise ValueError("must not be negative")
    return number


def _truth(value: Any) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("neither true nor false")
    return text in ("true", "1", "yes")


def _exit_codes(value: Any) -> tuple[int, ...]:
    parts = value.replace(":", " ").split() if isinstance(value, str) else value
    return tuple(_count(part) for part in parts)


def _names(parse: Callable[[str], tuple[str, ...]], value: Any) -> tuple[str, ...]:
    return parse(value if isinstance(value, str) else ",".join(value)) if value else ()


_KEYS: dict[str, Callable[[Any], Any]] = {
    "join_timeout": _positive_milliseconds,
    "last_call": _milliseconds,
    "settle_time": _milliseconds,
    "grow_after": _milliseconds,
    "grow": _truth,
    "restart_backoff": _milliseconds,
    "fence_after": _milliseconds,
    "no_retry_exit_codes": _exit_codes,
    "quarantine_after": _count,
    "quarantine_window": _milliseconds,
    "quarantine_cooldown": _milliseconds,
    "max_reformations": _count,
    "crash_loop": _count,
    "progress_after": _milliseconds,
    "heartbeat_interval": _milliseconds,
    "lease": _milliseconds,
    "coordinator_timeout": _positive_milliseconds,
    "node_name": str,
    "rank": _count,
    "preload": partial(_names, parse_modules),
    "preload_call": partial(_names, parse_calls),
}
