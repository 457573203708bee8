"""The Dockerfile: linted, and about files that are there. Building it needs a registry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

from support.deploy.manifests import KUBERNETES, REPOSITORY

DOCKERFILE = REPOSITORY / "examples" / "docker" / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")
STAGE = re.compile(r"^FROM (\S+) AS (\S+)$", re.MULTILINE)
COPY = re.compile(r"^COPY (?!--from)(.+) \S+$", re.MULTILINE)
LIMIT_S = 60


def stages() -> dict[str, str]:
    """Return what each stage is made from, and its lines."""
    _, *parts = STAGE.split(DOCKERFILE.read_text())
    return {
        name: f"FROM {base}\n{body}" for base, name, body in zip(*[iter(parts)] * 3, strict=True)
    }


def test_lint() -> None:
    """hadolint finds nothing."""
    done = subprocess.run(
        [str(HADOLINT), str(DOCKERFILE)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")


def test_copied_files_are_there() -> None:
    """Each file is in the repository, and the ignore file lets it through."""
    ignore = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = [path for names in COPY.findall(DOCKERFILE.read_text()) for path in names.split()]
    assert copied

    missing = [path for path in copied if not (REPOSITORY / path).exists()]
    hidden = [path for path in copied if not any(Path(path).match(one) for one in allowed)]
    assert (missing, hidden) == ([], [])


def test_what_the_images_hold() -> None:
    """Both end as a user without rights, and take only the environment from the build stages."""
    found = stages()

    assert list(found)[-1] == "coordinator"  # what `docker build` makes without --target
    for name in ("training", "coordinator"):
        assert re.findall(r"^FROM (\S+)", found[name]) == ["runtime"]
        assert re.findall(r"^COPY --from=\S+ (\S+)", found[name], re.MULTILINE) == [
            "/opt/rallypoint"
        ]
        assert "\nUSER 10001:10001\n" in found[name]
        assert "RUN" not in found[name]
    assert "pip uninstall" in found["runtime"]
    assert "HEALTHCHECK" in found["coordinator"]


def test_kustomizations_name_the_images() -> None:
    """Its tags are the stages of the Dockerfile."""
    for folder in ("plain", "jobset"):
        kustomization = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())
        tags = {image["name"]: image["newTag"] for image in kustomization["images"]}

        assert tags == {"rallypoint": "coordinator", "training": "training"}
