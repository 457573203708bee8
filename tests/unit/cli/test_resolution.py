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

OWN = None
SEVERAL = "--nnodes=2 --job-id=j"
STATIC = "--coordinator=c --nnodes=2 --master-addr=m.example"
UNREACHED = (None, 0, "master_addr_ignored")
NEAR = "--coordinator=localhost --nnodes=2"


def follow(line: str, variables: str = "") -> Resolution:
    environment = dict(text.split("=", 1) for text in variables.split())
    args = build_parser().read([*line.split(), "a.py"], environment)
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
        ("--rdzv-endpoint=e", "", "e:50051", ""),
        ("--rdzv-endpoint=e:29400", "", "e:29400", ""),
        ("--rdzv-endpoint=[::1]:29400", "", "[::1]:29400", ""),
        ("--rdzv-endpoint=", "", OWN, ""),
        ("--rdzv-endpoint=localhost:0", "", OWN, ""),
        (f"--rdzv-endpoint=e {SEVERAL}", "", "e:50051", ""),
        (SEVERAL, "PET_RDZV_ENDPOINT=e:1", "e:1", ""),
        ("--coordinator=c", "PET_RDZV_ENDPOINT=e", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-endpoint=http://e:2379", "", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-endpoint=c:50051", "", "c:50051", ""),
        ("--coordinator=c --rdzv-endpoint=localhost:0", "", "c:50051", ""),
        (f"--coordinator=c --rdzv-endpoint=h:0 {SEVERAL}", "", "c:50051", "rdzv_endpoint_ignored"),
        ("--coordinator=c --rdzv-backend=c10d", "", "c:50051", "rdzv_backend_replaced"),
        ("--coordinator=c --rdzv-backend=rallypoint", "", "c:50051", ""),
        ("--rdzv-endpoint=e", "PET_RDZV_BACKEND=etcd-v2", "e:50051", "rdzv_backend_replaced"),
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
        ("--coordinator=c --rdzv-conf=is_host=1", "", "c:50051", "rdzv_conf_keys_ignored"),
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
        ("--standalone", "127.0.0.1", 0, ""),
        ("--standalone --master-port=9", "127.0.0.1", 9, ""),
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
        ("--nnodes=2", "a job of several nodes needs a coordinator: give --coordinator"),
        ("--nnodes=1:2 --master-addr=m --node-rank=0", "needs a coordinator"),
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

    assert follow("--coordinator=c --job-id=i", around).job_id == "i"
    assert follow("--coordinator=d --job-id=j", around).coordinator == "d:50051"
    assert follow("--standalone --job-id=j", around).coordinator is OWN


def test_endpoint_is_said_to_be_hosted_by_no_agent() -> None:
    """A user of c10d expects that an agent listens there."""
    line = "--rdzv-endpoint=e:29400 --rdzv-backend=c10d"
    (note,) = follow(line).notes

    assert note.fields["by"] == "e:29400"
    assert (
        note.fields["hint"]
        == "no agent hosts it; start one there: rallypoint coordinator --port 29400"
    )
    assert "hint" not in follow(f"{line} --coordinator=e:29400").notes[-1].fields
    several = follow("--rdzv-endpoint=a:1,b:2 --rdzv-backend=c10d").notes[0].fields["hint"]
    start = "start one of them: rallypoint coordinator --port 1 --state etcd://…"
    assert several == f"no agent hosts it; {start}"


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
