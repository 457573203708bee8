"""Pages for developers name files that exist: a move that forgets them misleads for years."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ("CONTRIBUTING.md", "docs/architecture.md", "docs/changes.md", "docs/testing.md")
ABSENT = (".nightly/", "dist/", "site/", "rallypoint/__init__.py")
"""What commands make, and what there must not be."""
_PATH = re.compile(r"`((?:[\w.*-]+/)+(?:[\w*-]+\.(?:py|proto|md|json|sh))?)`")


@pytest.fixture(scope="module")
def files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, check=True)
    return listed.stdout.decode().splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_paths_of_a_page_exist(page: str, files: list[str]) -> None:
    """A path may begin at any folder; `fleet/` is one of the server's rooms."""
    named = set(_PATH.findall((ROOT / page).read_text()))
    assert named

    found = (one for one in sorted(named) if not one.startswith(ABSENT))
    assert [one for one in found if not exists(one, files)] == []


def exists(path: str, files: list[str]) -> bool:
    ending = f"{path}*" if path.endswith("/") else path
    return any(fnmatch(f"/{one}", f"*/{ending}") for one in files)
