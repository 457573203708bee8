"""The Kubernetes manifests of the examples, as they are written."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples"
KUBERNETES = EXAMPLES / "kubernetes"
Resource = Mapping[str, Any]
SECRETS = ("ca.pem", "coordinator.pem", "coordinator.key", "auth.toml", "agent.token")
"""What a user makes before the manifests with TLS and tokens are applied."""
LIMIT_S = 60
REFERENCE = re.compile(r"\$\((\w+)\)")
"""A variable in `command`, `args` or `env`, as the kubelet replaces it."""


@dataclass(frozen=True)
class Manifest:
    """One resource of a file."""

    file: str
    resource: Resource

    @property
    def name(self) -> str:
        """Return what a test calls it."""
        return f"{self.file}: {self.resource['kind']} {self.resource['metadata']['name']}"


def read(text: str, file: str = "-") -> list[Manifest]:
    """Return the resources of a document, in order."""
    return [Manifest(file, one) for one in yaml.safe_load_all(text) if one]


def find_manifests() -> list[Manifest]:
    """Return every resource that is written out in the examples; no kustomizations or patches."""
    folders = (KUBERNETES / "plain", KUBERNETES / "jobset")
    files = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    return [
        one
        for path in files
        if path.name != "kustomization.yaml"
        for one in read(path.read_text(encoding="utf-8"), path.name)
    ]


def render(name: str, folder: Path) -> list[Manifest]:
    """Return what `kubectl apply --kustomize` would send, by kubectl itself.

    Args:
        name: a folder of the example.
        folder: an empty one, for a copy of the example with contents for its secrets.
    """
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    for secret in SECRETS:
        (copy / "secure" / "files" / secret).write_text("content")
    done = subprocess.run(
        ["kubectl", "kustomize", str(copy / name)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    return read(done.stdout, name)


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Resource]:
    """Return the resources of one kind."""
    return [one.resource for one in manifests if one.resource["kind"] == kind]


@dataclass(frozen=True)
class Pod:
    """The template of pods, and what creates them."""

    name: str
    owner: Resource
    """A Deployment, or a Job: also one of a JobSet."""
    template: Resource

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the pods."""
        return dict(self.template["metadata"]["labels"])

    @property
    def container(self) -> Resource:
        """Return the one container."""
        (container,) = self.template["spec"]["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def command(self) -> list[str]:
        """Return the words of its command, with variables as they are written."""
        return [*self.container["command"], *self.container["args"]]

    def run(self, variables: Mapping[str, str]) -> list[str]:
        """Return the words of its command, with the variables that the kubelet knows."""
        return [REFERENCE.sub(lambda it: variables[it[1]], word) for word in self.command]


def find_pods(manifests: Sequence[Manifest]) -> Iterator[Pod]:
    """Yield every template of pods."""
    for manifest in manifests:
        resource = manifest.resource
        if resource["kind"] in ("Deployment", "Job"):
            yield Pod(manifest.name, resource, resource["spec"]["template"])
        elif resource["kind"] == "JobSet":
            for part in resource["spec"]["replicatedJobs"]:
                job = as_job(part)
                yield Pod(f"{manifest.name}/{part['name']}", job, job["spec"]["template"])


def as_job(part: Resource) -> Resource:
    """Return the Job that JobSet creates from one of its `replicatedJobs`."""
    metadata = {"name": part["name"], **part["template"].get("metadata", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": part["template"]["spec"],
    }
