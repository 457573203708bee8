"""The parameters of a rendezvous, with torch's meaning and defaults, as settings of ours.

docs/torch.md has the table. torchrun counts restarts itself, so the coordinator counts none: the
run ends when torchrun gives up, and never because rounds form too often.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from rallypoint.agent.embedded.settings import foreign_settings
from rallypoint.agent.session.program import describe_program, find_user
from rallypoint.agent.settings import Settings
from rallypoint.base.log import get_logger
from rallypoint.v1 import job_pb2
from rallypoint.wire.access import TOKEN_VARIABLES, Access, from_environment
from rallypoint.wire.durations import to_duration
from rallypoint.wire.local_token import with_local_token

log = get_logger()

DEFAULT_PORT = 50_051
"""The coordinator's, when the endpoint names none."""
NO_ID = "none"
"""torchrun's id of every job that has none."""
COUNT_MAX = 2**31 - 1

_SECONDS = {
    # torch's own keys
    "join_timeout": 600.0,
    "last_call_timeout": 30.0,
    "close_timeout": 30.0,
    "keep_alive_interval": 5.0,
    "read_timeout": 60.0,
    # ours
    "stop_timeout": 45.0,
    "settle_time": 5.0,
    "grow_after": 10.0,
}
_WAITS = ("join_timeout", "read_timeout")
"""Those that 0 would end before they begin."""
_IGNORED = ("timeout", "heartbeat_timeout", "heartbeat")
"""Keys of torch's back ends that torchrun itself sets, or that limit what we do not do."""
_NO_EFFECT = {
    "is_host": "the coordinator is a separate process",
    "store_type": "the coordinator has the store",
    "protocol": "it is for etcd",
    "rank": "nodes keep their ranks, and a new one gets the next",
}
_KNOWN = (*_SECONDS, *_IGNORED, *_NO_EFFECT, "keep_alive_max_attempt", "grow", "node_name")


class Conf(Struct, frozen=True, kw_only=True):
    """The parameters of one handler. Times are in seconds."""

    backend: str
    endpoint: str
    """host:port of the coordinator, or of several with commas in between."""
    access: Access
    """How this node proves who it is."""
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    node_name: str | None
    join_s: float
    """How long a node waits for a round."""
    last_call_s: float
    """How long the first round waits for nodes beyond the least number."""
    close_s: float
    """How long `shutdown` and `set_closed` may take."""
    beat_s: float
    lease_s: float
    read_s: float
    """How long a node without workers waits for a coordinator that does not answer."""
    stop_s: float
    """How long torchrun may take to stop its workers."""
    settle_s: float
    grow_after_s: float
    grow: bool

    def settings(self) -> Settings:
        """Return the settings of an agent for one node with these parameters."""
        return foreign_settings(
            coordinator=self.endpoint,
            access=self.access,
            job_id=self.run_id,
            spec=self._spec(),
            program=describe_program(
                "torchrun", sys.argv[1:], is_module=False, user=_user(), may_differ=True
            ),
            node_name=self.node_name,
            address=self.local_addr,
            shutdown_timeout_ms=_ms(self.stop_s),
            coordinator_timeout_ms=_ms(self.read_s),
            outcome_timeout_ms=_ms(self.close_s),
        )

    def _spec(self) -> job_pb2.JobSpec:
        return job_pb2.JobSpec(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            max_restarts=0,  # torchrun restarts workers: what it reports as failed stays failed
            join_timeout=to_duration(_ms(self.join_s)),
            last_call=to_duration(_ms(self.last_call_s)),
            settle_time=to_duration(_ms(self.settle_s)),
            grow_after=to_duration(_ms(self.grow_after_s)),
            grow=self.grow,
            shutdown_timeout=to_duration(_ms(self.stop_s)),
            restart_backoff=to_duration(0),
            quarantine_after=0,
            max_reformations=COUNT_MAX,
            crash_loop=0,
            heartbeat_interval=to_duration(_ms(self.beat_s)),
            lease=to_duration(_ms(self.lease_s)),
        )


def read_conf(params: RendezvousParameters) -> Conf:
    """Check and translate what torch passes.

    Raises:
        ValueError: when a value is wrong or missing; the text says which one, and what to do.
    """
    _warn_of_keys(params.config)
    endpoint = _parse_endpoints(params.endpoint)
    seconds = {key: _read_seconds(params, key) for key in _SECONDS}
    attempts = params.get_as_int("keep_alive_max_attempt", 3)
    if attempts is None or attempts < 1:
        raise ValueError(f"--rdzv-conf: keep_alive_max_attempt={attempts} has to be 1 or more")
    beat_s = min(max(seconds["keep_alive_interval"], 0.1), 300.0)
    lease_s = min(max(seconds["keep_alive_interval"] * attempts, 1.5), 3600.0)
    return Conf(
        backend=params.backend,
        endpoint=endpoint,
        access=with_local_token(from_environment({**_hidden, **os.environ}), endpoint),
        run_id=_find_id(params),
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr or None,
        node_name=params.get("node_name") or None,
        join_s=seconds["join_timeout"],
        last_call_s=seconds["last_call_timeout"],
        close_s=seconds["close_timeout"],
        beat_s=beat_s,
        lease_s=lease_s,
        read_s=seconds["read_timeout"],
        stop_s=seconds["stop_timeout"],
        settle_s=seconds["settle_time"],
        grow_after_s=seconds["grow_after"],
        grow=params.get_as_bool("grow", True) is not False,
    )


_hidden: dict[str, str] = {}
"""The variables with tokens that this process had, for its next rendezvous."""


def hide_tokens() -> None:
    """Remove the tokens from the environment of this process: torchrun's workers inherit it."""
    for name in TOKEN_VARIABLES:
        value = os.environ.pop(name, None)
        if value:
            _hidden[name] = value


def _warn_of_keys(config: Mapping[str, Any]) -> None:
    for key in config:
        if key in _NO_EFFECT:
            log.warning("option_ignored", option=f"--rdzv-conf {key}", why=_NO_EFFECT[key])
        elif key not in _KNOWN:
            known = ", ".join(sorted({*_SECONDS, "keep_alive_max_attempt", "grow", "node_name"}))
            log.warning("option_ignored", option=f"--rdzv-conf {key}", known=known)


def _parse_endpoints(endpoint: str) -> str:
    """Return host:port of every coordinator in the text, with commas in between.

    What torch accepts as an endpoint is one address, so each part of the text is one.
    """
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    endpoint = (endpoint or "").strip()
    if not endpoint:
        raise ValueError(
            "--rdzv-endpoint is missing: name a coordinator, HOST[:PORT]; "
            f"start one with `rallypoint coordinator --port {DEFAULT_PORT}`"
        )
    found = []
    for part in endpoint.split(","):
        if not part.strip():
            raise ValueError(f"--rdzv-endpoint={endpoint}: an address is missing at a comma")
        host, port = parse_rendezvous_endpoint(part, DEFAULT_PORT)
        if port == 0:
            raise ValueError(f"--rdzv-endpoint={endpoint}: port 0 names no coordinator")
        found.append(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    return ",".join(dict.fromkeys(found))


def _find_id(params: RendezvousParameters) -> str:
    """Return the id of the job; one without an id that has a single node gets its own."""
    run_id = str(params.run_id or "").strip()
    if run_id and run_id != NO_ID:
        return run_id
    if params.max_nodes == 1:
        return f"torchrun-{uuid.uuid4().hex[:12]}"
    raise ValueError("--rdzv-id is missing: give every node of the job the same --rdzv-id NAME")


def _read_seconds(params: RendezvousParameters, key: str) -> float:
    value = params.get(key, _SECONDS[key])
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= 30 * 86_400:
        raise ValueError(f"--rdzv-conf: {key}={value} has to be a time in seconds")
    if key in _WAITS and not _ms(seconds):
        raise ValueError(f"--rdzv-conf: {key}={value} is no time to wait: give more than 0 s")
    return seconds


def _user() -> str:
    return find_user(os.environ, os.getuid())


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
