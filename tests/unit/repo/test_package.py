"""The wheel: whole, typed, and without anything that only developers need."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
PORTIONS = (
    "agent",
    "base",
    "cli",
    "client",
    "elastic",
    "embedded",
    "journal",
    "relay",
    "server",
    "torch",
    "v1",
    "wire",
    "worker",
)
FOLDERS = (
    *("agent", "base", "benchmarks", "cli", "client", "elastic", "examples"),
    *("proto", "release", "server"),
)
SUFFIXES = ("", ".go", ".json", ".js", ".mod", ".proto", ".py", ".service", ".sbatch", ".yaml")
"""Without one: a Dockerfile, for example."""
LIMIT_S = 250
USER_PROGRAM = '''\
"""What a user of the package may write."""

from rallypoint import worker
from rallypoint.base.log import get_logger
from rallypoint.cli.commands.coordinator import build_parser
from rallypoint.client import AsyncClient, Client
from rallypoint.v1.job_pb2 import JobSpec
from rallypoint.wire.durations import to_duration

spec = JobSpec(min_nodes=1, max_nodes=2, join_timeout=to_duration(1_000))
port: int = build_parser().read([], {}).port
get_logger().info("spec_made", nodes=spec.max_nodes + port)


def train(client: Client) -> int:
    sizes: list[bytes] = worker.all_gather(b"1")
    return len(sizes) + client.get_job("job").job.round.header.number


async def names(client: AsyncClient) -> list[str]:
    return [node.name async for node in client.list_nodes("job")]
'''


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--no-index", "--wheel-dir", str(folder), str(REPOSITORY)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("rallypoint-*.whl")
    return path


def test_wheel_is_a_typed_namespace(wheel: Path) -> None:
    """Each package has py.typed; the namespace holds `__main__` alone; no test is in it."""
    names = zipfile.ZipFile(wheel).namelist()
    own = [name for name in names if ".dist-info/" not in name]

    assert {name.split("/")[0] for name in own} == {"rallypoint"}
    assert [name for name in own if name.count("/") == 1] == ["rallypoint/__main__.py"]
    assert sorted({name.split("/")[1] for name in own if name.count("/") > 1}) == [*PORTIONS]
    for portion in PORTIONS:
        assert f"rallypoint/{portion}/py.typed" in names
    assert "rallypoint/v1/descriptors.binpb" in names  # what reflection serves
    assert "rallypoint/journal/v1/batch_pb2.py" in names


def test_wheel_has_the_three_commands(wheel: Path) -> None:
    """And nothing else on PATH; and torchrun finds the back end."""
    entries = ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        entries.read_string(archive.read(name).decode())

    assert list(entries["console_scripts"]) == ["coordinator", "node-agent", "rallypoint"]
    handlers = dict(entries["torchrun.handlers"])
    assert handlers == {"rallypoint": "rallypoint.torch.rendezvous:handler"}


def find_files() -> Iterator[Path]:
    """Yield what may hold a version: code, examples and settings. Tests make versions up."""
    yield from (REPOSITORY / name for name in ("Makefile", "pyproject.toml", "mkdocs.yml"))
    for folder in FOLDERS:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and path.suffix in SUFFIXES and "node_modules" not in path.parts:
                yield path


def test_version_is_in_one_place() -> None:
    """`pyproject.toml` has it; the program reads the metadata of what is installed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    found = re.compile(rf"(?<![\w.=]){re.escape(project['version'])}(?![\w.])")
    copies = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in find_files()
        if path.parent != REPOSITORY / "benchmarks" / "results"  # of what was measured then
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if found.search(line)
    ]

    assert [name.partition(":")[0] for name in copies] == ["pyproject.toml"], copies


def test_program_of_a_user_passes_strict_types(wheel: Path, tmp_path: Path) -> None:
    """mypy finds the types of an installed package, and none is missing."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    program = tmp_path / "program.py"
    program.write_text(USER_PROGRAM)
    # A .pth file and a path outside the project: as pip installs it, not as this checkout has it.
    python = _make_environment(tmp_path / "venv", site)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert (done.stdout, done.returncode) == ("Success: no issues found in 1 source file\n", 0)


def _make_environment(folder: Path, site: Path) -> str:
    """Return the interpreter of an environment with the wheel's files and our dependencies."""
    import sysconfig
    import venv

    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for path in site.iterdir():
        path.rename(packages / path.name)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(folder / "bin" / "python")
