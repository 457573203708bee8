"""Makes a release, up to the upload: checks the tree, builds, and tries what was built.

    python release/make_release.py ready    # is this commit one that can be released?
    python release/make_release.py build    # dist/: wheel, sdist, SBOM and checksums

`make release` runs both. The tests have run before: a commit is ready once `make nightly` has
passed at it. Nothing is uploaded, tagged or pushed: the last lines say how. The same commit gives
the same bytes on any day and machine that has the pinned tools.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from steps import artifacts, tree, trial
from steps.commands import NotReleased

REPOSITORY = Path(__file__).resolve().parents[1]


def build(repository: Path, release: tree.Release, dist: Path) -> list[Path]:
    """Build and check everything; move it to `dist`, whose earlier contents are removed.

    Returns:
        The files of the release, sorted by name.

    Raises:
        NotReleased: a check failed. `dist` is as it was.
    """
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        made = folder / "dist"
        built = artifacts.build_twice(repository, release, folder, made)
        artifacts.check(built, repository)
        _say("wheel and sdist are built, the same twice, and the sdist builds the same wheel")
        python = trial.install(release, built, repository, folder / "venv")
        trial.try_out(python, release, folder / "trial")
        _say("the wheel is installed; a coordinator and an agent of it have run a job")
        artifacts.write_sbom(python, repository, release, made)
        artifacts.write_sums(made)
        shutil.rmtree(dist, ignore_errors=True)
        shutil.copytree(made, dist)
    return sorted(dist.iterdir())


def next_steps(release: tree.Release, files: list[Path]) -> str:
    """Return what a person does next: nothing of it is done here."""
    names = " ".join(f"dist/{path.name}" for path in files if path.suffix in (".whl", ".gz"))
    tag = f"v{release.version}"
    return (
        f"nothing has been uploaded. To release {release.version}:\n"
        f"  git tag -a {tag} -m 'Rallypoint {release.version}' {release.commit[:12]}\n"
        f"  git push origin {tag}\n"
        f"  python -m twine upload {names}\n"
        f"and attach what is in dist/ to the release {tag} on GitHub"
    )


def main() -> int:
    """Run a command; return its exit code: 1 for what cannot be released."""
    parser = argparse.ArgumentParser(prog="make_release", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("ready", "build"))
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="another checkout")
    chosen = parser.parse_args()
    repository = chosen.repository.resolve()
    try:
        release = tree.check(repository)
        if chosen.command == "ready":
            tree.check_nightly(repository, release.commit)
        _say(f"rallypoint {release.version} can be released from {release.commit[:12]}")
        if chosen.command == "build":
            files = build(repository, release, repository / "dist")
            print("\n".join(f"dist/{path.name}" for path in files))
            print(next_steps(release, files))
    except NotReleased as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 1
    return 0


def _say(line: str) -> None:
    print(f"release: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
