"""The parameters of a rendezvous, with torch's meaning and defaults, as settings of ours.

docs/torch.md has the table.
"""

from __future__ import annotations

import os
import sys
import uuid

from msgspec import Struct
from msgspec.structs import replace
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from rallypoint.agent.embedded.settings import foreign_settings
from rallypoint.agent.launch.notes import log_notes
from rallypoint.agent.launch.options import (
    PLUGIN_KEYS,
    PLUGIN_OPTIONS,
    JobOptions,
    list_key_notes,
    read_config,
)
from rallypoint.agent.session.program import describe_program, find_user
from rallypoint.agent.settings import Settings
from rallypoint.base.values import BadValue
from rallypoint.wire.access import TOKEN_VARIABLES, Access, from_environment
from rallypoint.wire.local_token import with_local_token

DEFAULT_PORT = 50_051
"""The coordinator's, when the endpoint names none."""
NO_ID = "none"
"""torchrun's id of every job that has none."""


class Conf(Struct, frozen=True, kw_only=True):
    """The parameters of one handler."""

    backend: str
    endpoint: str
    """host:port of the coordinator, or of several with commas in between."""
    access: Access
    """How this node proves who it is."""
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None
    options: JobOptions

    def settings(self) -> Settings:
        """Return the settings of an agent for one node with these parameters."""
        options = self.options
        return foreign_settings(
            coordinator=self.endpoint,
            access=self.access,
            job_id=self.run_id,
            spec=options.spec(min_nodes=self.min_nodes, max_nodes=self.max_nodes),
            program=describe_program(
                "torchrun", sys.argv[1:], is_module=False, user=_user(), may_differ=True
            ),
            node_name=options.node_name,
            address=self.local_addr,
            shutdown_timeout_ms=options.shutdown_timeout,
            coordinator_timeout_ms=options.coordinator_timeout_ms,
            outcome_timeout_ms=options.outcome_timeout,
        )


def read_conf(params: RendezvousParameters) -> Conf:
    """Check and translate what torch passes.

    Raises:
        ValueError: when a value is wrong or missing; the text says which one, and what to do.
    """
    # torchrun always sets this one, and its back end c10d ignores it.
    config = {key: value for key, value in params.config.items() if key != "timeout"}
    try:
        options = replace(PLUGIN_OPTIONS, **read_config(config, PLUGIN_KEYS))
    except BadValue as bad:
        raise ValueError(f"--rdzv-conf: {bad}") from None
    log_notes(list_key_notes(config, PLUGIN_KEYS))
    endpoint = _parse_endpoints(params.endpoint)
    return Conf(
        backend=params.backend,
        endpoint=endpoint,
        access=with_local_token(from_environment({**_hidden, **os.environ}), endpoint),
        run_id=_find_id(params),
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr or None,
        options=options,
    )


_hidden: dict[str, str] = {}
"""The variables with tokens that this process had, for its next rendezvous."""


def hide_tokens() -> None:
    """Remove the tokens from the environment of this process: torchrun's workers inherit it."""
    for name in TOKEN_VARIABLES:
        value = os.environ.pop(name, None)
        if value:
            _hidden[name] = value


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


def _user() -> str:
    return find_user(os.environ, os.getuid())
