"""The options of a job in Python: torch's keys keep their meaning, ours are those of the flags."""

from __future__ import annotations

from typing import Any

import pytest

from rallypoint.agent.launch.options import (
    COMMAND_KEYS,
    OPTIONS,
    PLUGIN_KEYS,
    PYTHON_KEYS,
    HangAction,
    JobOptions,
    list_key_notes,
    read_config,
)
from rallypoint.elastic import RendezvousParameters, get_rendezvous_handler
from rallypoint.elastic.node.coordinated import CoordinatedRendezvous, find_coordinator


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, JobOptions()),
        ({"timeout": 60}, JobOptions(join_timeout=60_000)),
        ({"timeout": 60, "join_timeout": "90"}, JobOptions(join_timeout=90_000)),
        ({"last_call_timeout": "30"}, JobOptions(last_call=30_000)),
        ({"keep_alive_interval": 5}, JobOptions(lease=15_000, heartbeat_interval=5_000)),
        ({"keep_alive_interval": 0.01}, JobOptions(lease=1_500, heartbeat_interval=100)),
        (
            {"keep_alive_interval": 2, "heartbeat_interval": 1},
            JobOptions(lease=6_000, heartbeat_interval=1_000),
        ),
        ({"keep_alive_max_attempt": "2"}, JobOptions(lease=10_000)),
        ({"keep_alive_interval": 2, "lease": 7}, JobOptions(lease=7_000, heartbeat_interval=2_000)),
        ({"grow": False, "settle_time": 0.5}, JobOptions(grow=False, settle_time=500)),
        ({"no_retry_exit_codes": "3:4"}, JobOptions(no_retry_exit_codes=(3, 4))),
        ({"no_retry_exit_codes": [3]}, JobOptions(no_retry_exit_codes=(3,))),
        (
            {"hang_after": 60, "hang_first_after": 0, "hang_action": "Restart"},
            JobOptions(hang_after=60_000, hang_first_after=0, hang_action=HangAction.RESTART),
        ),
        ({"rank": 0, "node_name": "n"}, JobOptions(rank=0, node_name="n")),
        (
            {"preload": "torch, json", "preload_call": ["a.b:f"]},
            JobOptions(preload=("torch", "json"), preload_call=("a.b:f",)),
        ),
        ({"preload": ["auto"]}, JobOptions(preload=("auto",))),
        ({"close_timeout": 30, "store_type": "file"}, JobOptions()),
    ],
)
def test_options(config: dict[str, Any], expected: JobOptions) -> None:
    """Each key has one meaning, and the clearer one of two wins."""
    assert expected == JobOptions(**read_config(config, PYTHON_KEYS))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"join_timeout": "soon"}, "join_timeout: 'soon'"),
        ({"join_timeout": 0}, "join_timeout: 0 is too short: give more than 0 s"),
        ({"timeout": "0.0001"}, "timeout: '0.0001' is too short"),
        ({"coordinator_timeout": 0}, "coordinator_timeout: 0 is too short"),
        ({"lease": 1}, "lease: 1 is not 1.5 to 3600 seconds"),
        ({"grow": "maybe"}, "grow: 'maybe' is neither true nor false"),
        ({"crash_loop": -2}, "crash_loop: -2 is not 0 or more"),
        ({"no_retry_exit_codes": [object]}, "no_retry_exit_codes"),
        ({"preload": "a b"}, "preload: 'a b' is not the name of a module"),
        ({"preload": "auto,json"}, "preload: auto and names of modules exclude"),
        ({"preload_call": "json"}, "preload_call: 'json' is not of the form pkg.mod:function"),
        ({"hang_action": "kill"}, "hang_action: 'kill' is not one of report, restart"),
        ({"quarantine_after": 1_001}, "quarantine_after: 1001 is more than 1000"),
        ({"rank": 1.5}, "rank: 1.5 is not a whole number"),
    ],
)
def test_wrong_options(config: dict[str, Any], text: str) -> None:
    """The error names the key, the value and what is wrong."""
    with pytest.raises(ValueError, match=f"rendezvous option {text}"):
        get_rendezvous_handler(parameters(**config))


@pytest.mark.parametrize(
    ("keys", "unused", "unknown", "near"),
    [
        (COMMAND_KEYS, ["cert", "rank"], ["joint_timeout", "lease", "use_thing"], "join_timeout"),
        (PYTHON_KEYS, ["cert"], ["joint_timeout", "use_thing"], "join_timeout"),
        (
            PLUGIN_KEYS,
            ["cert", "is_host", "rank"],
            ["joint_timeout", "lease", "use_thing"],
            "join_timeout",
        ),
    ],
)
def test_keys_without_an_effect(
    keys: dict[str, str], unused: list[str], unknown: list[str], near: str
) -> None:
    """torch ignores them, so they end no launch; a warning says what may have been meant."""
    config = dict.fromkeys(
        ("use_thing", "rank", "lease", "joint_timeout", "join_timeout", "is_host", "cert"), "1"
    )

    assert [
        ("rdzv_conf_keys_ignored", {"keys": unused, "why": "no store is used"}),
        ("rdzv_conf_keys_not_recognized", {"keys": unknown, "did_you_mean": near}),
    ] == [(note.event, note.fields) for note in list_key_notes(config, keys)]
    assert [] == list_key_notes(dict.fromkeys(keys, "1"), keys)


def test_every_option_of_a_job_is_in_its_specification() -> None:
    """Under its own name, also where the value is the default."""
    spec = JobOptions(heartbeat_interval=100, lease=1_500).spec(min_nodes=1, max_nodes=2)
    shared = {name for name, option in OPTIONS.items() if not option.is_of_node}
    fields = {field.name for field in spec.DESCRIPTOR.fields}
    values = {field.name for field, value in spec.ListFields()}

    assert fields == shared | {"min_nodes", "max_nodes"}
    assert fields - values == {"max_restarts", "no_retry_exit_codes", "no_requeue_exit_codes"}


def parameters(**changed: Any) -> RendezvousParameters:
    fields: dict[str, Any] = {
        "backend": "rallypoint",
        "endpoint": "",
        "run_id": "job",
        "min_nodes": 1,
        "max_nodes": 1,
        **changed,
    }
    return RendezvousParameters(**fields)


@pytest.mark.parametrize(
    ("endpoint", "nodes", "backend", "expected"),
    [
        ("", 1, "rallypoint", None),
        ("localhost:0", 1, "c10d", None),
        ("127.0.0.1:29500", 1, "static", None),
        ("head", 1, "rallypoint", "head:50051"),
        ("head:7", 4, "c10d", "head:7"),
        ("head", 4, "c10d", "head:29400"),
        ("head", 4, "static", "head:50051"),
        ("a,b:7", 4, "c10d", "a:50051,b:7"),
        ("[::1]:7", 2, "static", "[::1]:7"),
    ],
)
def test_coordinator(endpoint: str, nodes: int, backend: str, expected: str | None) -> None:
    """An endpoint is the coordinator; a node that is alone without one gets a built-in one."""
    found = find_coordinator(parameters(endpoint=endpoint, max_nodes=nodes, backend=backend))

    assert expected == found


@pytest.mark.parametrize(
    ("backend", "conf", "is_hosted", "is_chosen"),
    [
        ("c10d", {}, True, None),
        ("c10d", {"rank": 0}, True, None),
        ("c10d", {"is_host": "true"}, True, True),
        ("static", {"rank": 0}, True, True),
        ("static", {"rank": 1}, True, False),
        ("static", {}, True, None),
        ("rallypoint", {}, False, None),
        ("etcd", {"is_host": "true"}, False, None),
    ],
)
def test_who_hosts_the_coordinator(
    backend: str, conf: dict[str, Any], is_hosted: bool, is_chosen: bool | None
) -> None:
    """A node does where one hosts the store of torch's back end; other back ends have a server."""
    handler = get_rendezvous_handler(
        parameters(endpoint="head:7", max_nodes=2, backend=backend, **conf)
    )
    assert isinstance(handler, CoordinatedRendezvous)
    hosting = handler.meeting.hosting

    assert (hosting is not None) is is_hosted
    assert hosting is None or (hosting.endpoint, hosting.is_chosen) == ("head:7", is_chosen)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"max_nodes": 2}, "a job of several nodes needs a coordinator: set rdzv_endpoint"),
        ({"endpoint": "no host:x"}, "'no host:x' is not HOST:PORT of a coordinator"),
        ({"run_id": ""}, "a job needs a name"),
        ({"backend": "zookeeper"}, "'zookeeper' is not registered; known: c10d, etcd"),
        ({"join_timeout": "x"}, "rendezvous option join_timeout"),
    ],
)
def test_wrong_parameters(changed: dict[str, Any], text: str) -> None:
    """A wrong description is refused before the network is used."""
    with pytest.raises(ValueError, match=text):
        get_rendezvous_handler(parameters(**changed))


def test_worker_does_not_join_its_own_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait for itself, also where nodes spell the coordinator's host differently."""
    monkeypatch.setenv("RALLYPOINT_COORDINATOR", "head:50051")
    monkeypatch.setenv("RALLYPOINT_JOB_ID", "job")

    with pytest.raises(ValueError, match="already a worker of job job"):
        get_rendezvous_handler(parameters(endpoint="head"))
    with pytest.raises(ValueError, match="already a worker of job job"):
        get_rendezvous_handler(parameters(endpoint="head.example:50051", backend="c10d"))
    other = get_rendezvous_handler(parameters(endpoint="head", run_id="other"))
    assert isinstance(other, CoordinatedRendezvous)
