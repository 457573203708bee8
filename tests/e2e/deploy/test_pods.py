"""The commands of the Kubernetes manifests, run: they form a job, and a pod that is deleted drains.

There is no cluster here. The pods are processes in namespaces; what Kubernetes itself does with the
manifests is not tested.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rallypoint.base.exit_codes import EXIT_DENIED
from rallypoint.v1 import job_pb2
from support.access.authority import Authority
from support.access.protected import AGENT, entry
from support.deploy.manifests import EXAMPLES, REPOSITORY, Pod, find_manifests, find_pods, render
from support.deploy.pods import PodProcess, localize, replace
from support.processes.jobs import Jobs, is_started, node
from support.processes.world import World
from support.tries.commit import choose_long

HEALTHCHECK = EXAMPLES / "docker" / "healthcheck.py"
LIMIT_S = 120
PODS = {pod.name: pod for pod in find_pods(find_manifests())}
PAIRS = {
    "job": ("coordinator.yaml: Deployment rallypoint-coordinator", "agents.yaml: Job train"),
    "jobset": (
        "jobset.yaml: JobSet train/coordinator",
        "jobset.yaml: JobSet train/agents",
    ),
}


def can_isolate() -> bool:
    return os.geteuid() == 0 and bool(shutil.which("unshare") and shutil.which("nsenter"))


needs_namespaces = pytest.mark.skipif(not can_isolate(), reason="needs root, unshare and nsenter")


def is_healthy(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(HEALTHCHECK), *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture
def pod_world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, "localhost:1") as world:
        yield world


def start_coordinator(world: World, pod: Pod, files: Mapping[str, str]) -> str:
    """Start the coordinator of a manifest, with its journal in the test's folder; return its port.

    Args:
        world: the test's.
        pod: the template.
        files: where folders that are mounted are here.
    """
    port = str(world.ports.reserve())
    (world.folder / "volume").mkdir()
    volumes = {"50051": port, "/var/lib/rallypoint": str(world.folder / "volume"), **files}
    words = localize(pod.command, volumes)
    command = world.start("coordinator", [*words, "--host=127.0.0.1"])
    world.target = command.stdout_line().removeprefix("listening on ")
    world.jobs.channel.close()
    world.jobs = Jobs(world.target)
    return port


@needs_namespaces
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=choose_long("pods", at, len(PAIRS)))
        for at, kind in enumerate(PAIRS)
    ],
)
def test_pods_of_a_job(pod_world: World, kind: str) -> None:
    """Four pods are one job; deleting one drains its node, which is not charged; its successor is
    the same node; all pods succeed.
    """
    coordinator, agents = PAIRS[kind]
    start_coordinator(pod_world, PODS[coordinator], {})
    pods = [PodProcess(pod_world, PODS[agents], f"train-{index}") for index in range(4)]
    first = pod_world.mailbox.workers(8, limit_s=LIMIT_S)
    assert {worker.node for worker in first} == {f"train-{index}" for index in range(4)}
    assert is_healthy(pod_world.target) == (0, "")

    deleting = threading.Thread(target=pods[3].delete)
    deleting.start()
    job = pod_world.jobs.wait(pod_world.job_id, drains, LIMIT_S)
    assert job.notices[0].node_name == "train-3"
    for worker in first:
        if worker.node == "train-3":
            worker.tell("exit", "0")
    deleting.join(LIMIT_S)
    assert pods[3].command.wait() == 143
    second = pod_world.mailbox.workers(6, round=2, limit_s=LIMIT_S)
    assert {worker.node for worker in second} == {"train-0", "train-1", "train-2"}

    pods[3] = PodProcess(pod_world, PODS[agents], "train-3")
    job = pod_world.jobs.wait(pod_world.job_id, lambda job: is_started(job, 3), LIMIT_S)
    assert dict(node(job, "train-3").labels) == {"kubernetes-node": "on-train-3"}
    assert (len(job.nodes), job.restart_count) == (4, 0)
    for worker in pod_world.mailbox.workers(8, round=3, limit_s=LIMIT_S):
        worker.tell("exit", "0")
    assert [pod.command.wait() for pod in pods] == [0, 0, 0, 0]


def drains(job: job_pb2.Job) -> bool:
    return job.waiting.kind == job_pb2.WAIT_KIND_DRAIN


@pytest.mark.nightly
@needs_namespaces
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_secure_pods(pod_world: World) -> None:
    """With certificates and tokens the job forms, and the probe is content; an agent without a
    token gets no further. Workers have no token of the agent.
    """
    coordinator, agents = find_pods(render("secure", pod_world.folder))
    mounted = pod_world.folder / "mounted"
    pair = Authority(mounted).issue("coordinator", ["rallypoint-coordinator", "localhost"])
    files = {}
    for path, content in (
        ("/etc/rallypoint/tls/tls.crt", Path(pair.cert).read_text()),
        ("/etc/rallypoint/tls/tls.key", Path(pair.key).read_text()),
        ("/etc/rallypoint/ca/ca.crt", (mounted / "ca.pem").read_text()),
        ("/etc/rallypoint/auth/auth.toml", entry("training", "agent", AGENT)),
        ("/etc/rallypoint/agent/token", AGENT),
    ):
        local = mounted / Path(path).name
        local.write_text(content)
        local.chmod(0o440)  # as the kubelet does, for the group of the pod
        files[path] = str(local)

    port = start_coordinator(pod_world, coordinator, files)
    script, *arguments = coordinator.container["readinessProbe"]["exec"]["command"][1:]
    assert script == "/opt/rallypoint/healthcheck.py"
    assert is_healthy(*(replace(word, {**files, "50051": port}) for word in arguments)) == (0, "")
    pod_world.target = f"localhost:{port}"
    pods = [PodProcess(pod_world, agents, f"train-{index}", files) for index in range(2)]
    workers = pod_world.mailbox.workers(4, limit_s=LIMIT_S)
    secrets = [name for worker in workers for name in worker.env if "RALLYPOINT_TOKEN" in name]
    assert secrets == []
    assert workers[0].env["RALLYPOINT_TLS_CA"] == files["/etc/rallypoint/ca/ca.crt"]

    stranger = PodProcess(pod_world, without_token(agents), "stranger", files)
    assert stranger.command.wait(LIMIT_S) == EXIT_DENIED
    for worker in workers:
        worker.tell("exit", "0")
    assert [pod.command.wait() for pod in pods] == [0, 0]


def without_token(pod: Pod) -> Pod:
    """Return a pod that lacks the variable with the token."""
    template = copy.deepcopy(dict(pod.template))
    (container,) = template["spec"]["containers"]
    container["env"] = [one for one in container["env"] if "TOKEN" not in one["name"]]
    return Pod(pod.name, pod.owner, template)


@pytest.mark.long
def test_health_check(pod_world: World) -> None:
    """It exits with 0 if the coordinator serves; else it says in one line why not."""
    port = pod_world.ports.reserve()
    code, line = is_healthy(f"localhost:{port}", "--timeout=20")
    assert (code, line.splitlines()[0].partition(": UNAVAILABLE: ")[0]) == (
        1,
        f"healthcheck: localhost:{port}",
    )
    coordinator = pod_world.coordinator(port)

    assert is_healthy(f"localhost:{port}") == (0, "")
    missing = str(pod_world.folder / "no.pem")
    code, line = is_healthy(f"localhost:{port}", f"--tls-ca={missing}")
    assert code == 1 and missing in line and len(line.splitlines()) == 1
    assert coordinator.is_running()
