"""The layout of the repository, as checks.

`rallypoint` is a PEP 420 namespace with one portion per root folder. A single stray `__init__.py`
would hide all other portions, and a stray module in a root would become importable by, and
so collide with, the user's own `server.py` or `agent.py`. The namespace itself holds one module,
`__main__`, for `python -m rallypoint`.
"""

import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import rallypoint

REPOSITORY = Path(__file__).resolve().parents[3]
ROOTS = ("base", "proto", "client", "server", "agent", "elastic", "cli")
MODULE_LINES_MAX = 500
"""Lines of a module that a person wrote. At 400, ask whether it decides two things."""
TEST_LINES_MAX = 900
"""The same for a module of the tests: what one test alone needs stands in that test."""
FOLDER_MODULES_MAX = 20
"""Modules of a folder, `__init__.py` included. Rooms follow subjects, not counts."""
WITHOUT_TORCH = ("agent", "cli", "client", "elastic", "embedded", "server", "worker")
IMPORT_TIMEOUT_S = 60  # an import that hangs fails here, not in the job's own limit


def find_modules(prefix: str) -> list[str]:
    """Return the dotted name of every module below `prefix`, sorted, runnable ones left out.

    Reads the files rather than asking pkgutil, which passes over folders without `__init__.py`.
    """
    names = set()
    for portion in map(Path, rallypoint.__path__):
        for path in portion.rglob("*.py"):
            parts = path.relative_to(portion.parent).with_suffix("").parts
            if parts[-1] == "__main__":
                continue
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if name == prefix or name.startswith(f"{prefix}."):
                names.add(name)
    return sorted(names)


def find_sources() -> list[Path]:
    """Return every Python file of the repository that a person wrote, sorted."""
    folders = [path for path in REPOSITORY.iterdir() if path.is_dir() and path.name[0] != "."]
    return sorted(
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if not path.stem.endswith(("_pb2", "_pb2_grpc"))
    )


def is_of_tests(path: Path) -> bool:
    """Return whether a file is below `tests`."""
    return path.is_relative_to(REPOSITORY / "tests")


def test_namespace_has_no_file() -> None:
    """`rallypoint` is a namespace package: no portion holds an `__init__.py`."""
    assert getattr(rallypoint, "__file__", None) is None


def test_namespace_holds_one_module() -> None:
    """Only `python -m rallypoint` is a module of the namespace itself; the rest are packages."""
    modules = [path for root in ROOTS for path in (REPOSITORY / root / "rallypoint").glob("*.py")]

    assert [REPOSITORY / "cli" / "rallypoint" / "__main__.py"] == modules


@pytest.mark.parametrize("root", ROOTS)
def test_root_holds_only_the_namespace(root: str) -> None:
    """Nothing but `rallypoint` can be imported from a root folder."""
    importable = [
        path.name
        for path in (REPOSITORY / root).iterdir()
        if path.suffix == ".py"
        or (path.is_dir() and path.name not in ("rallypoint", "__pycache__"))
    ]

    assert importable == []


def test_no_process_but_a_worker_loads_torch() -> None:
    """Importing every module of the others loads no torch; the output names the one that does."""
    found = [find_modules(f"rallypoint.{package}") for package in WITHOUT_TORCH]
    assert all(found), "a package has moved"
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(name)"
    )

    finished = subprocess.run(
        [sys.executable, "-c", program, *chain(*found)],
        capture_output=True,
        text=True,
        timeout=IMPORT_TIMEOUT_S,
        check=False,
    )

    assert (finished.returncode, finished.stderr) == (0, "")


def test_modules_are_short() -> None:
    """No module that a person wrote is longer than the limit."""
    limits = {
        path: TEST_LINES_MAX if is_of_tests(path) else MODULE_LINES_MAX for path in find_sources()
    }
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in limits}

    assert {str(path): count for path, count in lines.items() if count > limits[path]} == {}


def test_folders_are_small() -> None:
    """No folder of the product holds more modules than the limit, generated stubs aside."""
    modules = Counter(
        str(path.parent.relative_to(REPOSITORY)) for path in find_sources() if not is_of_tests(path)
    )

    assert {name: count for name, count in modules.items() if count > FOLDER_MODULES_MAX} == {}
