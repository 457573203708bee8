"""The parameters of a rendezvous: torch's meaning and defaults, and clear errors."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from rallypoint.agent.launch.meeting_point import MeetingPoint
from rallypoint.agent.launch.options import (
    ATTEMPTS,
    INTERVAL,
    INTERVAL_MS,
    OPTIONS,
    PLUGIN_KEYS,
    PLUGIN_OPTIONS,
    SECONDS,
)
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.embedded.python_log import use_python_log
from rallypoint.torch.rendezvous.conf import read_conf
from rallypoint.wire.access import PLAIN

PAGE = Path(__file__).parents[4] / "docs" / "torch.md"
TIMES_MS = {INTERVAL: INTERVAL_MS} | {
    key: getattr(PLUGIN_OPTIONS, name)
    for key, name in PLUGIN_KEYS.items()
    if OPTIONS[name].unit == SECONDS
}
DOCUMENTED = {*PLUGIN_KEYS, INTERVAL, ATTEMPTS}


def read(
    endpoint: str = "c:50051", run_id: str = "j", nodes: tuple[int, int] = (1, 2), **config: Any
) -> LaunchPlan:
    return read_conf(RendezvousParameters("rallypoint", endpoint, run_id, *nodes, **config))


def test_defaults_are_those_of_torch() -> None:
    """As in torch's dynamic rendezvous."""
    conf = read()
    options = conf.options
    assert (options.join_timeout, options.last_call) == (600_000, 30_000)
    assert (options.outcome_timeout, options.coordinator_timeout) == (30_000, 60_000)
    assert (options.heartbeat_interval, options.lease) == (5_000, 15_000)
    assert conf.meeting == MeetingPoint("c:50051", None, "j")


def test_specification() -> None:
    """The run never ends before torchrun gives up; torchrun counts the restarts."""
    plan = read(join_timeout="20", last_call_timeout="1.5", keep_alive_max_attempt="2")
    settings = plan.settings(PLAIN)
    job = settings.spec
    assert (job.min_nodes, job.max_nodes, job.max_restarts) == (1, 2, 0)
    assert job.join_timeout.seconds == 20
    assert (job.last_call.seconds, job.last_call.nanos) == (1, 500_000_000)
    assert (job.quarantine_after, job.crash_loop, job.max_reformations) == (0, 0, 2**31 - 1)
    assert (job.heartbeat_interval.seconds, job.lease.seconds) == (5, 10)
    assert settings.signals == () and settings.fence_ms == 0


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("host", "host:50051"),
        ("host:7", "host:7"),
        ("[::1]:7", "[::1]:7"),
        ("[::1]", "[::1]:50051"),
        (" host:7 ", "host:7"),
        ("a,b:7, [::1]:7,a:50051", "a:50051,b:7,[::1]:7"),
    ],
)
def test_endpoint(endpoint: str, expected: str) -> None:
    """The port is the coordinator's unless the endpoint has one."""
    assert read(endpoint).meeting.coordinator == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"endpoint": ""}, "--rdzv-endpoint is missing: name a coordinator"),
        ({"endpoint": "host:0"}, "'host:0' is not HOST:PORT of a coordinator"),
        ({"endpoint": "host:x"}, "--rdzv-endpoint: 'host:x' is not HOST:PORT of"),
        ({"endpoint": "host:1,b:x"}, "'b:x' is not HOST:PORT of"),
        ({"endpoint": "host:1,"}, "'' is not HOST:PORT of"),
        ({"run_id": "none"}, "--rdzv-id is missing"),
        ({"join_timeout": "soon"}, "join_timeout: 'soon' is not a number of seconds"),
        ({"join_timeout": "0"}, "join_timeout: '0' is too short: give more than 0 s"),
        ({"read_timeout": 0.0001}, "read_timeout: 0.0001 is too short"),
        ({"last_call_timeout": "-1"}, "last_call_timeout: '-1' is not between 0 s and 30 days"),
        ({"keep_alive_max_attempt": "0"}, "keep_alive_max_attempt: '0' is not 1 or more"),
        ({"grow": "perhaps"}, "grow"),
    ],
)
def test_wrong_values(arguments: dict[str, Any], text: str) -> None:
    """Each is named, with what to do."""
    with pytest.raises(ValueError, match=text):
        read(**arguments)


def test_job_of_one_node_needs_no_id() -> None:
    """It gets its own; two such jobs share nothing."""
    first, second = (read(run_id="none", nodes=(1, 1)).meeting.job_id for _ in range(2))
    assert first != second and first.startswith("torchrun-")


def test_unknown_keys_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """A key without an effect does no harm, but is not ignored in silence."""
    use_python_log()
    with caplog.at_level(logging.WARNING, "rallypoint"):
        read(is_host="1", join_timout="3", timeout=900)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "is_host" in lines[0] and "join_timout" in lines[1] and "join_timeout" in lines[1]


def test_documented_keys() -> None:
    """docs/torch.md has every key, with its default."""
    rows = re.findall(r"^\| `(\w+)` (?:\* )?\| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    documented = {key: default for key, default in rows if key in DOCUMENTED}
    assert set(documented) == DOCUMENTED
    for key, default_ms in TIMES_MS.items():
        assert documented[key] == f"{default_ms / 1000:g} s"
