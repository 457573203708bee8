"""What to do after a refusal: near names of jobs and nodes, and the next step.

The coordinator's text says what is wrong. Suggestions cost a call; if it fails, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from rallypoint.cli.operator.hints import recommend
from rallypoint.client.errors import RallypointError, UnknownJob, UnknownNode

if TYPE_CHECKING:
    from rallypoint.client import Client

NAMES_MAX = 5_000
"""Names among which a near one is looked for: a list in pages would take long."""
SHOWN_MAX = 3
"""Names in one message."""

NEXT_STEPS = {
    "SPEC_IMPOSSIBLE": "give both ends: {rallypoint} resize {job} MIN:MAX",
    "NODES_MISSING": "keep MIN to grow as nodes come: {rallypoint} resize {job} MIN:MAX; "
    "or --force",
    "SPEC_CHANGED": "another operator has changed it: look at it, and try again",
    "JOB_OPEN": "look at it: {rallypoint} status {job}",
    "LATER_RUN": "leave out --run for the latest",
    "ACCESS_TOKEN_MISSING": "find out why: {rallypoint} doctor",
    "ACCESS_TOKEN_INVALID": "find out why: {rallypoint} doctor",
    "ACCESS_TOKEN_EXPIRED": "ask for another one: rallypoint token new",
    "ROLE_NOT_ALLOWED": "use the token of such a role: --token-file FILE",
    "JOB_NOT_ALLOWED": "name a job of yours, or use another token: --token-file FILE",
    "TOKEN_MISSING": "keys belong to workers: --worker PID, or RALLYPOINT_WORKER_TOKEN",
    "TOKEN_REFUSED": "take that of a worker that runs now: --worker PID",
    "OTHER_JOB": "take that of a worker of this job: --worker PID",
    "RUN_OVER": "take that of a worker that runs now: --worker PID",
    "OLD_ROUND": "take that of a worker of the round that runs: --worker PID",
}
"""By the constant of a refusal, where the text does not say it; as `recommend` takes it."""


def explain(error: RallypointError, client: Client | None, job_id: str = "") -> str:
    """Return the text of an error with the next step.

    Args:
        error: of a call.
        client: to look for near names with; None: there was none.
        job_id: that the command is about; empty: unknown.
    """
    text = str(error)
    advice = NEXT_STEPS.get(error.refusal, "")
    if client is not None and isinstance(error, UnknownJob):
        advice = suggest_job(client, error.job_id)
    elif client is not None and isinstance(error, UnknownNode):
        advice = suggest_node(client, error.job_id, error.node_name)
    advice = recommend(advice, job=job_id)
    return f"{text}; {advice}" if advice else text


def suggest_job(client: Client, job_id: str) -> str:
    """Return which job may be meant, or how to see them; empty if they cannot be listed."""
    try:
        names = [one.job_id for one in islice(client.list_jobs(), NAMES_MAX)]
    except RallypointError:
        return ""
    if not names:
        return "the coordinator has no jobs"
    return suggest(job_id, names) or recommend("list them: {rallypoint} jobs")


def suggest_node(client: Client, job_id: str, node_name: str) -> str:
    """Return which node may be meant; empty if they cannot be listed."""
    try:
        names = [one.name for one in islice(client.list_nodes(job_id), NAMES_MAX)]
    except RallypointError:
        return ""
    if not names:
        return "the job has no nodes now"
    return suggest(node_name, names) or recommend(
        "list them: {rallypoint} status {job}", job=job_id
    )


def suggest(wanted: str, names: Iterable[str]) -> str:
    """Return a question with the names that are near; empty if none is."""
    import difflib  # slow to import, and only an error needs it

    known = list(names)
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wanted.lower(), lowered, n=SHOWN_MAX, cutoff=0.6)
    found = [lowered[one] for one in near]
    found += [name for name in known if wanted and name.startswith(wanted) and name not in found]
    return f"did you mean {' or '.join(map(repr, found[:SHOWN_MAX]))}?" if found else ""
