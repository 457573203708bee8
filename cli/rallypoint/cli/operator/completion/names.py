"""Names of jobs, nodes, barriers and contexts for a shell: soon, or none.

A person waits for them with a finger on the Tab key. So a coordinator that does not answer at once,
or refuses, is the same as one without jobs, and nothing is printed about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rallypoint.cli.operator.common import AccessOptions, Common
from rallypoint.cli.operator.completion.line import Kind, Wanted
from rallypoint.cli.operator.failures import CommandFailed
from rallypoint.cli.operator.invocation import Invocation
from rallypoint.client.errors import RallypointError

CALL_S_MAX = 1.0
"""Longest connection, and longest call after it."""
NAMES_MAX = 200
"""More names help less than a few more letters."""


def find_names(wanted: Wanted) -> dict[str, str]:
    """Return the candidates, and what each is; empty if they cannot be found soon.

    Args:
        wanted: what stands at the cursor.
    """
    given = {name: values[-1] for name, values in wanted.given.items() if values}
    invocation = Invocation(_read_common(given))
    try:
        return dict(islice(_find(invocation, wanted, given), NAMES_MAX))
    except (CommandFailed, RallypointError, OSError, ValueError):
        return {}
    finally:
        invocation.close()


def _find(
    invocation: Invocation, wanted: Wanted, given: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    taken: Sequence[str] = wanted.given.get("node", ())
    match wanted.kind:
        case Kind.JOBS:
            yield from _find_jobs(invocation, wanted.begun)
        case Kind.NODES if "job" in given:
            for node in invocation.client.list_nodes(given["job"]):
                if node.name not in taken:
                    yield node.name, "spare" if node.spare else node.address
        case Kind.BARRIERS if "job" in given:
            for one in invocation.client.list_barriers(given["job"]):
                yield one.name, f"{one.arrived_count} of {one.expected_count} have arrived"
        case Kind.CONTEXTS:
            yield from _find_contexts()
        case Kind.EVENTS:
            yield from ((name, "") for name in _find_kinds())
        case _:
            return


def _read_common(given: Mapping[str, str]) -> Common:
    """Return the options on the command line that name a coordinator, or the way to it."""
    names = ("coordinator", "context", *AccessOptions.__struct_fields__[1:])
    texts: dict[str, Any] = {name: given.get(name, "") for name in names}
    return Common(timeout_s=CALL_S_MAX, tls="tls" in given, **texts)


def _find_jobs(invocation: Invocation, begun: str) -> Iterator[tuple[str, str]]:
    from rallypoint.cli.operator.views.words import describe_state

    for job in invocation.client.list_jobs(prefix=begun, page_size=NAMES_MAX):
        yield job.job_id, describe_state(job.phase, job.outcome)


def _find_contexts() -> Iterator[tuple[str, str]]:
    from rallypoint.cli.operator.contexts import contexts_path, read_contexts

    for name, context in read_contexts(contexts_path(os.environ)).contexts.items():
        yield name, context.coordinator


def _find_kinds() -> Iterator[str]:
    from rallypoint.v1 import event_service_pb2 as events_pb2

    for name in events_pb2.EventKind.keys()[1:]:
        yield name.removeprefix("EVENT_KIND_").lower().replace("_", "-")
