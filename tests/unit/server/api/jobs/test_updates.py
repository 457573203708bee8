"""Which fields of an update count, and what a request to drain must say."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from rallypoint.server.api.jobs.requests import to_update
from rallypoint.server.api.nodes import to_drain_node
from rallypoint.server.contract.calls import InvalidMessage
from rallypoint.v1 import job_service_pb2 as jobs_pb2
from rallypoint.v1 import node_service_pb2 as nodes_pb2

BOTH = jobs_pb2.JobUpdate(min_nodes=2, max_restarts=0)


def request(update: jobs_pb2.JobUpdate, *paths: str) -> jobs_pb2.UpdateJobRequest:
    mask = FieldMask(paths=paths)
    return jobs_pb2.UpdateJobRequest(job_id="j", update=update, update_mask=mask)


@pytest.mark.parametrize(
    ("paths", "fields"),
    [
        ((), {"min_nodes", "max_restarts"}),
        (("max_restarts",), {"max_restarts"}),
        (("min_nodes", "min_nodes"), {"min_nodes"}),
    ],
)
def test_mask_chooses_what_counts(paths: tuple[str, ...], fields: set[str]) -> None:
    """Without one, what is set counts, also a zero."""
    assert fields == to_update(request(BOTH, *paths)).fields


@pytest.mark.parametrize(
    ("update", "paths", "path", "problem"),
    [
        (BOTH, ("size",), "update_mask.paths[0]", "must be min_nodes or max_nodes or max_restarts"),
        (BOTH, ("min_nodes", "maxNodes"), "update_mask.paths[1]", "must be min_nodes"),
        (BOTH, ("max_nodes",), "update.max_nodes", "is missing, but update_mask names it"),
        (BOTH, ("min_nodes",) * 4, "update_mask", "has more than 3 paths"),
        (jobs_pb2.JobUpdate(), (), "update", "must set min_nodes"),
        (jobs_pb2.JobUpdate(max_nodes=0), (), "update.max_nodes", "must be 1 to 16384"),
    ],
)
def test_wrong_update_is_refused(
    update: jobs_pb2.JobUpdate, paths: tuple[str, ...], path: str, problem: str
) -> None:
    """With the field at fault, and what it can be."""
    with pytest.raises(InvalidMessage) as caught:
        to_update(request(update, *paths))

    assert path == caught.value.path
    assert caught.value.problem.startswith(problem)


def test_drain_says_how_long_it_may_take() -> None:
    """Nothing is stopped at once because a field was forgotten; a zero that was written counts."""
    drain = nodes_pb2.DrainNodeRequest(job_id="j", node_name="n")
    with pytest.raises(InvalidMessage) as caught:
        to_drain_node(drain)
    assert caught.value.path == "drain_timeout"
    assert 'such as "600s"' in caught.value.problem
    drain.drain_timeout.CopyFrom(Duration())

    assert to_drain_node(drain).time_ms == 0
