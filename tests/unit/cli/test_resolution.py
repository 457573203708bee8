"""Which coordinator, job and address follow from torchrun's names and ours: one table for each."""

from __future__ import annotations

import pytest

from rallypoint.cli.commands.agent.command import build_parser
from rallypoint.cli.commands.agent.resolution import (
    Resolution,
    Unresolvable,
    find_launch_id,
    resolve,
)
from rallypoint.cli.flags.agent import rendezvous

OWN = None
SEVERAL = "--nnodes=2 --job-id=j"
STATIC = "--coordinator=c --nnodes=2 --master-addr=m.example"
UNREACHED = (None, 0, "master_addr_ignored")
NEAR = "--coordinator=localhost --nnodes=2"


def follow(line: str, variables: str = "") -> Resolution:
    environment = dict(text.split("=", 1) for text in variables.split())
    args = build_parser().read([*line.split(), "a.py"], environment)
    rendezvous.check(args)
    return resolve(args, environment, fresh="fresh", host="here")


def events(found: Resolution) -> list[str]:
    return [note.event for note in found.notes]


@pytest.mark.parametrize(
    ("line", "variables", "coordinator", "noted"),
    [
        ("--coordinator=c", "", "c:50051", ""),
        ("--coordinator=c:1 --nnodes=2 --job-id=j", "", "c:1", ""),
        ("", "PET_COORDINATOR=c:7", "c:7", ""),
        ("--standalone", "", OWN, ""),
        ("--standalone --nnodes=1:4", "", OWN, ""),
        ("", "", OWN, ""),
        ("--nnodes=1:1", "", OWN, ""),
        ("--master-port=29500", "", OWN, ""),
        ("--rdzv-endpoint=e", "", "e:29400", ""),
        ("--rdzv-endpoint=e,f:1", "", "e:50051,f:1", ""),
        ("--rdzv-endpoint=e:29400", "", "e:29400", ""),
        ("--rdzv-endpoint=[::1]:29400", "", "[::1]:29400", ""),
        ("--rdzv-endpoint=", "", OWN, ""),
        ("--rdzv-endpoint=localhost:0", "", OWN, ""),
        (f"--rdzv-endpoint=e {SEVERAL}", "", "e:29400", ""),
        (SEVERAL, "PET_RDZV_ENDPOINT=e:1", "e:1", ""),
        ("--coordinator=c", "PET_RDZV_ENDPOINT=e", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-endpoint=http://e:2379", "", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-endpoint=c:50051", "", "c:50051", ""),
        ("--coordinator=c:29400 --rdzv-endpoint=c", "", "c:29400", ""),
        ("--coordinator=c --rdzv-endpoint=localhost:0", "", "c:50051", ""),
        (f"--coordinator=c --rdzv-endpoint=h:0 {SEVERAL}", "", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-backend=c10d", "", "c:50051", "rdzv_backend_replaced"),
        ("--coordinator=c --rdzv-backend=rallypoint", "", "c:50051", ""),
        ("--rdzv-endpoint=e", "PET_RDZV_BACKEND=etcd-v2", "e:29400", "rdzv_backend_replaced"),
        ("--standalone --coordinator=c", "", "c:50051", ""),
        ("--standalone --rdzv-backend=c10d", "", OWN, "rendezvous_flags_ignored"),
        ("--standalone --rdzv-endpoint=e", "", OWN, "rendezvous_flags_ignored"),
        (
            "--standalone --rdzv-endpoint=e --coordinator=c",
            "",
            "c:50051",
            "rendezvous_flags_ignored",
        ),
        ("--standalone", "PET_RDZV_ID=x PET_RDZV_BACKEND=c10d", OWN, "rendezvous_flags_ignored"),
        ("--coordinator=c --monitor-interval=5", "", "c:50051", "monitor_interval_ignored"),
        ("--coordinator=c --rdzv-conf=use_libuv=1", "", "c:50051", "rdzv_conf_keys_ignored"),
        ("--coordinator=c --rdzv-conf=a=1", "", "c:50051", "rdzv_conf_keys_not_recognized"),
        ("--coordinator=c --rdzv-conf=is_host=1", "", "c:50051", ""),
        ("--coordinator=c --rdzv-conf=timeout=1", "", "c:50051", ""),
        (
            "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --monitor-interval=1",
            "",
            OWN,
            "rdzv_backend_replaced monitor_interval_ignored",
        ),
    ],
)
def test_coordinator(line: str, variables: str, coordinator: str | None, noted: str) -> None:
    """The coordinator that a flag names; a built-in one for a single node."""
    found = follow(line, variables)

    assert found.coordinator == coordinator
    assert events(found) == noted.split()


@pytest.mark.parametrize(
    ("line", "variables", "job_id", "noted"),
    [
        ("", "", "fresh", ""),
        ("--coordinator=c", "SLURM_JOB_ID=7", "fresh", ""),
        ("--coordinator=c --job-id=j", "", "j", ""),
        ("--coordinator=c --rdzv-id=r", "", "r", ""),
        ("--coordinator=c --rdzv-id=none", "", "none", ""),
        ("--coordinator=c --nnodes=2", "PET_RDZV_ID=r", "r", ""),
        ("--coordinator=c --nnodes=2", "PET_JOB_ID=j", "j", ""),
        ("--coordinator=c --job-id=j --rdzv-id=j", "", "j", ""),
        ("--coordinator=c --job-id=j --rdzv-id=r", "", "j", "rdzv_id_ignored"),
        ("--coordinator=c --job-id=j", "PET_RDZV_ID=r", "j", "rdzv_id_ignored"),
        ("--coordinator=c --nnodes=2", "SLURM_JOB_ID=7 SLURM_STEP_ID=1", "slurm-7.1", ""),
        ("--coordinator=c --nnodes=2", "SLURM_JOB_ID=7", "slurm-7.0", ""),
        (f"{STATIC} --node-rank=1", "SLURM_JOB_ID=7", "slurm-7.0", ""),
        (f"{STATIC} --node-rank=1", "", "m.example:29500", ""),
        (f"{STATIC} --node-rank=1 --master-port=1234", "", "m.example:1234", ""),
        (f"{STATIC} --node-rank=0 --rdzv-id=r", "", "r", ""),
        (
            "--coordinator=c --nnodes=2",
            "PET_MASTER_ADDR=m PET_MASTER_PORT=9 PET_NODE_RANK=1",
            "m:9",
            "",
        ),
        ("--coordinator=c --master-addr=m", "", "fresh", ""),
        (f"{NEAR} --master-addr=127.0.0.1", "", "here:29500", ""),
        (f"{NEAR} --master-addr=localhost --master-port=9", "", "here:9", ""),
        (f"{NEAR} --master-addr=[::1]", "", "here:29500", ""),
        ("--standalone --job-id=j", "", "j", ""),
        ("--standalone --rdzv-id=r", "", "fresh", "rendezvous_flags_ignored"),
        ("--standalone --coordinator=c --rdzv-id=r", "", "fresh", "rendezvous_flags_ignored"),
        ("--standalone --coordinator=c", "SLURM_JOB_ID=7", "fresh", ""),
    ],
)
def test_job_id(line: str, variables: str, job_id: str, noted: str) -> None:
    """The given id; a fresh one for one node; for several nodes one that all of them can derive."""
    found = follow(line, variables)

    assert found.job_id == job_id
    assert events(found) == noted.split()


@pytest.mark.parametrize(
    ("line", "address", "port", "noted"),
    [
        ("--coordinator=c", None, 0, ""),
        ("--standalone", None, 0, ""),
        ("--standalone --master-port=9", None, 9, ""),
        ("--standalone --master-addr=h --master-port=9", "h", 9, ""),
        ("--coordinator=c --master-addr=h", "h", 0, ""),
        ("--coordinator=c --local-addr=l --master-addr=h", "l", 0, ""),
        ("--coordinator=c --master-addr=[::1]", "::1", 0, ""),
        (f"{STATIC} --node-rank=0", "m.example", 0, ""),
        (f"{STATIC} --node-rank=0 --local-addr=l --master-port=9", "l", 9, ""),
        (f"{STATIC} --node-rank=0 --master-port=9", "m.example", 9, ""),
        (f"{STATIC} --node-rank=1 --master-port=9", None, 0, ""),
        (f"{STATIC} --node-rank=1 --local-addr=l", "l", 0, ""),
        (f"{STATIC} --master-port=9", None, 9, "master_addr_ignored"),
        ("--coordinator=c --nnodes=2 --job-id=j --master-port=9", None, 9, ""),
        (f"{NEAR} --master-addr=localhost --node-rank=0", "localhost", 0, ""),
        (f"{NEAR} --master-addr=localhost --node-rank=1", "127.0.0.1", 0, ""),
        (f"{NEAR} --master-addr=127.0.0.1", "127.0.0.1", 0, ""),
        ("--coordinator=[::1]:7 --nnodes=2 --master-addr=[::1] --node-rank=0", "::1", 0, ""),
        ("--coordinator=c --nnodes=2 --master-addr=localhost --node-rank=0", *UNREACHED),
        ("--coordinator=c --nnodes=2 --master-addr=127.0.0.1 --node-rank=1", *UNREACHED),
        ("--coordinator=c --nnodes=2 --master-addr=localhost --local-addr=l", "l", 0, ""),
        ("--coordinator=c --master-addr=localhost", "localhost", 0, ""),
    ],
)
def test_address_and_port_of_a_static_master(
    line: str, address: str | None, port: int, noted: str
) -> None:
    """Node 0 has both as they were typed; nodes of one host are all called by its loopback.

    A loopback address is none for nodes on several hosts.
    """
    found = follow(line)

    assert (found.address, found.master_port) == (address, port)
    assert events(found) == noted.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "--nnodes=2",
            "several nodes need a place to meet: give every node the same --rdzv-endpoint",
        ),
        ("--nnodes=1:2 --job-id=j", "several nodes need a place to meet"),
        ("--nnodes=2 --master-addr=m/x", "--master-addr: 'm/x:29500' is not HOST:PORT"),
        ("--rdzv-endpoint=a,http://e", "--rdzv-endpoint: 'http://e' is not HOST:PORT"),
        ("--nnodes=2 --rdzv-endpoint=e:0", "--rdzv-endpoint: 'e:0' is not HOST:PORT"),
        ("--rdzv-endpoint=/shared/file", "--rdzv-endpoint: '/shared/file' is not HOST:PORT"),
        ("--rdzv-endpoint=http://e:2379", "--rdzv-endpoint: 'http://e:2379' is not HOST:PORT"),
        ("--coordinator=c --nnodes=1:2", "needs a name: give every node the same --job-id"),
        ("--standalone --nnodes=2", "--standalone is for a single node: drop --nnodes"),
        ("--standalone --coordinator=c --nnodes=2:3", "--standalone is for a single node"),
    ],
)
def test_what_leads_nowhere_is_refused(line: str, words: str) -> None:
    """With the flag that would help."""
    with pytest.raises(Unresolvable) as refused:
        follow(line)

    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("variables", "launch_id"),
    [
        ("", ""),
        ("SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_TASK_PID=10", "slurm-7.1.0"),
        ("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_TASK_PID=10 SLURM_RESTART_COUNT=2", "slurm-7.0.2"),
        ("SLURM_JOB_ID=7 SLURM_STEP_ID=1 SLURM_TASK_PID=9", ""),
        ("SLURM_JOB_ID=7 SLURM_TASK_PID=10", ""),
        ("SLURM_JOB_ID=7", ""),
    ],
)
def test_launch_is_slurms_own_task(variables: str, launch_id: str) -> None:
    """What a script of a task or a batch starts may be started again."""
    environment = dict(text.split("=", 1) for text in variables.split())

    assert find_launch_id(environment, pid=10) == launch_id


def test_worker_is_no_node_of_its_own_job() -> None:
    """A launcher in a worker that inherits the job's name would wait for the worker, and it for it.

    A launcher with another job, another coordinator or a built-in one is accepted.
    """
    around = "RALLYPOINT_COORDINATOR=c:50051 RALLYPOINT_JOB_ID=j"
    with pytest.raises(Unresolvable, match=r"already a worker of job j: use another --job-id"):
        follow("--coordinator=c", f"{around} PET_RDZV_ID=j")

    with pytest.raises(Unresolvable, match=r"already a worker of job j"):
        follow("--coordinator=a,b:7,c --job-id=j", around.replace("c:50051", "c:50051,x:1"))

    hosted = "RALLYPOINT_COORDINATOR=head:29400 RALLYPOINT_JOB_ID=port-29400"
    for host in ("head", "head.example", "localhost"):
        with pytest.raises(Unresolvable, match=r"already a worker of job port-29400"):
            follow(f"--nnodes=2 --rdzv-endpoint={host}", hosted)

    assert follow("--nnodes=2 --rdzv-endpoint=head:29401", hosted).job_id == "port-29401"
    assert follow("--coordinator=c --job-id=i", around).job_id == "i"
    assert follow("--coordinator=d --job-id=j", around).coordinator == "d:50051"
    assert follow("--standalone --job-id=j", around).coordinator is OWN


def test_several_endpoints_are_hosted_by_no_agent() -> None:
    """They share a store, which is not for an agent to start."""
    found = follow("--rdzv-endpoint=a:1,b:2 --rdzv-backend=c10d")
    start = "start one of them: rallypoint coordinator --port 1 --state etcd://…"

    assert found.hosting is None
    assert found.notes[0].fields["hint"] == f"no agent hosts several; {start}"
    assert "hint" not in follow("--rdzv-endpoint=e --rdzv-backend=c10d").notes[0].fields


def test_no_agent_reads_the_coordinator_of_an_operator() -> None:
    """Nor that of the worker that has started it; the user hears of the former."""
    variable = "RALLYPOINT_COORDINATOR=c:7"
    alone = follow("", variable)
    with pytest.raises(Unresolvable) as several:
        follow("--nnodes=2 --job-id=j", variable)

    assert (alone.coordinator, events(alone)) == (OWN, ["coordinator_variable_ignored"])
    assert events(follow("", f"{variable} RALLYPOINT_JOB_ID=i")) == []
    assert events(follow("--standalone", variable)) == []
    assert events(follow("--coordinator=d", variable)) == []
    assert str(several.value).endswith(
        ", or --coordinator c:7: no agent reads RALLYPOINT_COORDINATOR"
    )
    with pytest.raises(Unresolvable) as unset:
        follow("--nnodes=2 --job-id=j")
    assert str(unset.value).endswith("the name of one of them")


TWO = "--nnodes=2"
C10D = f"{TWO} --rdzv-backend=c10d"


@pytest.mark.parametrize(
    ("line", "endpoint", "is_chosen"),
    [
        (f"{C10D} --rdzv-endpoint=h", "h:29400", None),
        (f"{C10D} --rdzv-endpoint=h:1", "h:1", None),
        (f"{C10D} --rdzv-endpoint=[fd00::1]", "[fd00::1]:29400", None),
        (f"{TWO} --rdzv-endpoint=h", "h:29400", None),
        (f"{C10D} --rdzv-endpoint=h --node-rank=0", "h:29400", None),
        (f"{C10D} --rdzv-endpoint=h --node-rank=1 --master-addr=m", "h:29400", None),
        (f"{C10D} --rdzv-endpoint=h --rdzv-conf=is_host=true", "h:29400", True),
        (f"{C10D} --rdzv-endpoint=h --rdzv-conf=is_host=No", "h:29400", False),
        (C10D, "localhost:29400", None),
        ("--rdzv-endpoint=h", "h:29400", None),
        ("--rdzv-endpoint=localhost:29500 --rdzv-backend=c10d", "localhost:29500", None),
        (f"{TWO} --node-rank=0", "127.0.0.1:29500", True),
        (f"{TWO} --node-rank=1", "127.0.0.1:29500", False),
        (f"{TWO} --node-rank=0 --master-addr=m", "m:29500", True),
        (f"{TWO} --node-rank=1 --master-addr=m --master-port=1234", "m:1234", False),
        (f"{TWO} --node-rank=1 --master-addr=m --rdzv-conf=is_host=1", "m:29500", True),
        (f"{TWO} --master-addr=m", "m:29500", None),
        (f"{TWO} --master-port=7", "127.0.0.1:7", None),
        (f"{TWO} --node-rank=0 --master-addr=fd00::1", "[fd00::1]:29500", True),
        (f"{TWO} --node-rank=0 --master-addr=[fd00::1]", "[fd00::1]:29500", True),
    ],
)
def test_where_nodes_meet_without_a_coordinator(
    line: str, endpoint: str, is_chosen: bool | None
) -> None:
    """At the endpoint, else at node 0's address, with torchrun's default ports.

    The job is named after the port, unless it is a single node's.
    """
    found = follow(line)

    assert found.hosting is not None
    assert (found.coordinator, found.hosting.endpoint) == (endpoint, endpoint)
    assert found.hosting.is_chosen is is_chosen
    port = endpoint.rpartition(":")[2]
    assert found.job_id == (f"port-{port}" if "--nnodes=2" in line else "fresh")


def test_nodes_that_spell_the_endpoint_differently_are_in_one_job() -> None:
    """Only the port is the same for all of them; another port is another coordinator."""
    hosts = ("head", "head.example", "10.0.0.1", "[fd00::1]:29400", "localhost")
    names = {follow(f"{TWO} --rdzv-endpoint={host}").job_id for host in hosts}

    assert names == {"port-29400"}
    assert follow(f"{TWO} --rdzv-endpoint=head:29401").job_id == "port-29401"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "--rdzv-endpoint=localhost:0",
        "--node-rank=0 --master-addr=m",
        "--standalone",
        "--coordinator=c",
    ],
)
def test_no_coordinator_is_hosted_for_one_node_or_beside_a_named_one(line: str) -> None:
    """A single node without an endpoint has a built-in one."""
    assert follow(line).hosting is None


@pytest.mark.parametrize(
    ("line", "port"),
    [
        (f"{TWO} --node-rank=0 --master-addr=m --master-port=7", 0),
        (f"{TWO} --node-rank=0 --rdzv-endpoint=m:7 --master-port=7", 0),
        (f"{TWO} --node-rank=0 --rdzv-endpoint=m:8 --master-port=7", 7),
        (f"{TWO} --node-rank=0 --coordinator=m:7 --master-port=7", 7),
    ],
)
def test_master_port_belongs_to_the_hosted_coordinator(line: str, port: int) -> None:
    """Workers then get a free port; they keep one at which no coordinator listens."""
    assert follow(f"{line} --job-id=j").master_port == port


def test_hosted_coordinator_waits_only_for_fences() -> None:
    """Without a fence, agents that come late are stopped; with one, rounds must not overlap."""
    free = follow(f"{TWO} --rdzv-endpoint=h --join-timeout=7").hosting
    fenced = follow(f"{TWO} --rdzv-endpoint=h --fence-after=60").hosting

    assert free is not None and fenced is not None
    assert (free.unused_ms, free.window_ms, fenced.window_ms) == (7_000, 0, None)


def test_notes_say_what_was_given_and_what_holds() -> None:
    """What is not done is a warning; what is done in another way is not."""
    found = follow("--coordinator=c --rdzv-endpoint=e --rdzv-backend=etcd --rdzv-conf=key=k,cert=c")

    assert [(note.event, dict(note.fields), note.is_warning) for note in found.notes] == [
        (
            "rdzv_endpoint_ignored",
            {"endpoint": "e", "coordinator": "c:50051", "why": "--coordinator wins"},
            True,
        ),
        ("rdzv_backend_replaced", {"backend": "etcd", "by": "c:50051"}, False),
        ("rdzv_conf_keys_ignored", {"keys": ["cert", "key"], "why": "no store is used"}, True),
    ]
