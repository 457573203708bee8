"""The parameters of a rendezvous, with torch's meaning and defaults, as a plan of ours.

docs/torch.md has the table.
"""

from __future__ import annotations

import os
import sys
import uuid

from msgspec.structs import replace
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from rallypoint.agent.launch.meeting_point import MeetingPoint
from rallypoint.agent.launch.notes import log_notes
from rallypoint.agent.launch.options import (
    PLUGIN_KEYS,
    PLUGIN_OPTIONS,
    list_key_notes,
    read_config,
)
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.base.addresses import COORDINATOR_PORT, parse_endpoints
from rallypoint.base.values import BadValue
from rallypoint.wire.access import TOKEN_VARIABLES

NO_ID = "none"
"""torchrun's id of every job that has none."""


def read_conf(params: RendezvousParameters) -> LaunchPlan:
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
    return LaunchPlan(
        meeting=MeetingPoint(_parse_endpoints(params.endpoint), None, _find_id(params)),
        options=options,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        address=params.local_addr or None,
        title="torchrun",
        arguments=tuple(sys.argv[1:]),
        environment={**_hidden, **os.environ},
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
    """Return host:port of every coordinator in the text, with commas in between."""
    if not (endpoint or "").strip():
        raise ValueError(
            "--rdzv-endpoint is missing: name a coordinator, HOST[:PORT]; "
            f"start one with `rallypoint coordinator --port {COORDINATOR_PORT}`"
        )
    try:
        return parse_endpoints(endpoint.strip())
    except ValueError as error:
        raise ValueError(f"--rdzv-endpoint: {error} of a coordinator") from None


def _find_id(params: RendezvousParameters) -> str:
    """Return the id of the job; one without an id that has a single node gets its own."""
    run_id = str(params.run_id or "").strip()
    if run_id and run_id != NO_ID:
        return run_id
    if params.max_nodes == 1:
        return f"torchrun-{uuid.uuid4().hex[:12]}"
    raise ValueError("--rdzv-id is missing: give every node of the job the same --rdzv-id NAME")
