"""The Kubernetes manifests: valid by the schemas, consistent, and with commands that we accept.

No cluster is asked. What only one can tell is not tested: whether the images start under these
security settings, whether a storage class has the access modes, what a network plug-in enforces.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rallypoint.cli.commands.agent.command import build_parser as build_agent_parser
from rallypoint.cli.commands.coordinator import build_parser as build_coordinator_parser
from support.deploy.manifests import (
    EXAMPLES,
    REFERENCE,
    Manifest,
    Pod,
    as_job,
    find_manifests,
    find_pods,
    of_kind,
    render,
)

VERSIONS = ("1.31", "1.37")
"""The oldest one that has all fields without a feature gate, and the latest that we know."""
MANIFESTS = find_manifests()
PODS = list(find_pods(MANIFESTS))
AGENTS = [pod for pod in PODS if pod.labels["app.kubernetes.io/component"] == "agent"]
COORDINATORS = [pod for pod in PODS if pod.labels["app.kubernetes.io/component"] == "coordinator"]
VALUE = "a0-b1"
"""For a variable that the kubelet replaces."""
RESERVE_S = 15
"""What an agent needs besides its timeouts until it has ended."""


def name_of(value: Any) -> str:
    return str(value.name)


def validate(resource: Any, version: str) -> None:
    """Check a resource against the schema of Kubernetes, with unknown fields refused."""
    import kubernetes_validate  # takes a second

    kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize(
    "version", [pytest.param(VERSIONS[0], marks=pytest.mark.long), *VERSIONS[1:]]
)
@pytest.mark.parametrize(
    "manifest", [one for one in MANIFESTS if one.resource["kind"] != "JobSet"], ids=name_of
)
def test_schema(manifest: Manifest, version: str) -> None:
    """Each resource is valid by the OpenAPI schema of Kubernetes, without unknown fields."""
    validate(manifest.resource, version)


def test_schema_finds_mistakes() -> None:
    """An unknown field and a wrong type are found: the check above can fail."""
    import kubernetes_validate

    (job,) = of_kind(MANIFESTS, "Job")
    for wrong in ({"completionsMode": "Indexed"}, {"completions": "four"}):
        with pytest.raises(kubernetes_validate.ValidationError):
            validate({**job, "spec": {**job["spec"], **wrong}}, VERSIONS[-1])


def find_dropped(written: Any, read: Any, path: str = "") -> list[str]:
    """Return what a model has not kept of a document. Defaults that it adds do not count."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [
            found
            for key, value in written.items()
            for found in find_dropped(value, read.get(key), f"{path}.{key}")
        ]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        pairs = enumerate(zip(written, read, strict=True))
        return [found for n, pair in pairs for found in find_dropped(*pair, f"{path}[{n}]")]
    return [] if written == read else [path]


@pytest.mark.long  # the models take seconds to import
def test_schema_of_jobset() -> None:
    """The JobSet fits the models that Kubeflow generates from JobSet's schema, and no field is
    unknown to them; the jobs in it are valid by the schema of Kubernetes.
    """
    from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet

    (jobset,) = of_kind(MANIFESTS, "JobSet")
    model = JobsetV1alpha2JobSet.from_dict(dict(jobset))

    assert model is not None
    assert find_dropped(jobset, model.to_dict()) == []
    for part in jobset["spec"]["replicatedJobs"]:
        for version in VERSIONS:
            validate(as_job(part), version)


def test_jobset_refers_to_what_it_has() -> None:
    """Success is that of jobs in it, and the address is that of its coordinator."""
    (jobset,) = of_kind(MANIFESTS, "JobSet")
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    parts = [part["name"] for part in spec["replicatedJobs"]]
    (agents,) = (pod for pod in AGENTS if pod.name.endswith("/agents"))

    assert set(spec["successPolicy"]["targetReplicatedJobs"]) <= set(parts)
    assert f"--coordinator={name}-coordinator-0-0.{name}:50051" in agents.command


@pytest.mark.parametrize("pod", AGENTS, ids=name_of)
def test_agent(pod: Pod) -> None:
    """The command is one that the agent accepts; its numbers fit those of the Job."""
    words = [REFERENCE.sub(VALUE, word) for word in pod.command]
    assert words[:2] == ["rallypoint", "agent"]
    values = build_agent_parser().read(words[2:], {})
    spec, pods = pod.owner["spec"], pod.template["spec"]
    (rule,) = (rule for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule)

    assert spec["completionMode"] == "Indexed"
    assert values.nnodes[1] == spec["completions"] == spec["parallelism"]
    leaving_s = (values.drain_timeout + values.shutdown_timeout) / 1000
    assert pods["terminationGracePeriodSeconds"] >= leaving_s + RESERVE_S
    assert (pods["restartPolicy"], spec["podReplacementPolicy"]) == ("Never", "Failed")
    assert rule["onExitCodes"]["containerName"] == pod.container["name"]
    assert (EXAMPLES / values.script.removeprefix("/workspace/")).is_file()


@pytest.mark.parametrize("pod", COORDINATORS, ids=name_of)
def test_coordinator(pod: Pod) -> None:
    """The command is one that the coordinator accepts; port, probes and journal fit it."""
    assert pod.command[:2] == ["rallypoint", "coordinator"]
    values = build_coordinator_parser().read(pod.command[2:], {})
    container = pod.container
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}

    assert {"readinessProbe", "livenessProbe"} <= set(probes)
    assert [port["containerPort"] for port in container["ports"]] == [values.port]
    assert {probe["grpc"]["port"] for probe in probes.values()} == {values.port}
    place = re.fullmatch(r"sqlite:(/.+)/[^/]+/journal\.sqlite", values.state)
    assert place is not None and place[1] in mounts  # a folder below, which has mode 0700


@pytest.mark.parametrize("pod", PODS, ids=name_of)
def test_pod(pod: Pod) -> None:
    """It has no rights, writes only to volumes, and refers to nothing that is not there."""
    pods, container = pod.template["spec"], pod.container
    names = {variable["name"] for variable in container.get("env", ())}
    volumes = {volume["name"]: volume for volume in pods["volumes"]}
    claims = {claim["metadata"]["name"] for claim in of_kind(MANIFESTS, "PersistentVolumeClaim")}
    wanted = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes.values()
        if "persistentVolumeClaim" in volume
    }

    assert pods["securityContext"]["runAsNonRoot"] is True
    assert pods["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {name for word in pod.command for name in REFERENCE.findall(word)} == names
    assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
    assert wanted <= claims


def is_selected(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    assert set(selector) == {"matchLabels"}
    return set(selector["matchLabels"].items()) <= set(labels.items())


def test_selectors() -> None:
    """Service, Deployment and budget select the pods that they are about, and no others."""
    (service,) = of_kind(MANIFESTS, "Service")
    (deployment,) = of_kind(MANIFESTS, "Deployment")
    (budget,) = of_kind(MANIFESTS, "PodDisruptionBudget")
    (job,) = of_kind(MANIFESTS, "Job")
    for selector, pods in (
        ({"matchLabels": service["spec"]["selector"]}, COORDINATORS),
        (deployment["spec"]["selector"], COORDINATORS),
        (budget["spec"]["selector"], AGENTS),
    ):
        assert [pod for pod in PODS if is_selected(selector, pod.labels)] == pods

    (port,) = service["spec"]["ports"]
    name = f"{service['metadata']['name']}:{port['port']}"
    assert port["targetPort"] in {one["name"] for one in COORDINATORS[0].container["ports"]}
    assert f"--coordinator={name}" in AGENTS[0].command
    assert budget["spec"]["minAvailable"] == job["spec"]["completions"] - 1


def test_network_policies() -> None:
    """Agents reach the coordinator and each other; the coordinator reaches no one."""
    policies = {
        policy["metadata"]["name"]: policy["spec"] for policy in of_kind(MANIFESTS, "NetworkPolicy")
    }
    of_coordinators, of_agents = policies["rallypoint-coordinator"], policies["train"]
    agent, coordinator = AGENTS[0].labels, COORDINATORS[0].labels

    assert is_selected(of_coordinators["podSelector"], coordinator)
    assert is_selected(of_agents["podSelector"], agent)
    assert of_coordinators["egress"] == []
    (ingress,) = of_coordinators["ingress"]
    assert [one for one in ingress["from"] if is_selected(one["podSelector"], agent)]
    assert ingress["ports"] == [{"port": 50051, "protocol": "TCP"}]
    among, to_coordinator, _ = of_agents["egress"]
    assert of_agents["ingress"] == [{"from": among["to"]}]
    assert is_selected(among["to"][0]["podSelector"], agent)
    assert is_selected(to_coordinator["to"][0]["podSelector"], coordinator)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
@pytest.mark.parametrize(
    "folder",
    ["plain", *(pytest.param(name, marks=pytest.mark.long) for name in ("secure", "jobset"))],
)
def test_kustomization(folder: str, tmp_path: Path) -> None:
    """kubectl makes valid resources of it, all in one namespace, with images of the registry."""
    manifests = render(folder, tmp_path)

    assert {one.resource["metadata"]["namespace"] for one in manifests} == {"training"}
    for pod in find_pods(manifests):
        assert pod.container["image"].startswith("registry.example.com/rallypoint:")
    for one in manifests:
        if one.resource["kind"] != "JobSet":
            validate(one.resource, VERSIONS[-1])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_secure_pods(tmp_path: Path) -> None:
    """The coordinator accepts its flags, with nothing left open; every file is mounted, and the
    probes ask by the name that the agents use.
    """
    coordinator, agents = find_pods(render("secure", tmp_path))
    values = build_coordinator_parser().read(coordinator.command[2:], {})
    files = [values.tls_cert, values.tls_key, values.auth]
    variables = {one["name"]: one.get("value", "") for one in agents.container["env"]}
    (address,) = (
        word.partition("=")[2] for word in agents.command if word.startswith("--coordinator=")
    )

    assert values.require_auth
    assert [path for path in files if not is_mounted(coordinator, path)] == []
    for name in ("RALLYPOINT_TLS_CA", "RALLYPOINT_TOKEN_FILE"):
        assert is_mounted(agents, variables[name])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert "grpc" not in coordinator.container[probe]
        command = coordinator.container[probe]["exec"]["command"]
        assert f"--tls-server-name={address.partition(':')[0]}" in command
        assert f"localhost:{values.port}" in command


def is_mounted(pod: Pod, path: str) -> bool:
    """Return whether a volume of the pod has such a file."""
    folders = [mount["mountPath"] for mount in pod.container["volumeMounts"]]
    return str(Path(path).parent) in folders
