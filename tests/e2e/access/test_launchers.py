"""Workers of every launcher at a protected coordinator: they meet, and have no token of a node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.access.guarded import Guarded, guarded
from support.processes.world import WORKERS, World
from support.torchrun.plugin import torchrun

SCRIPT = str(WORKERS / "guarded.py")
PROGRAM = """
import sys
from rallypoint.elastic import LaunchConfig, elastic_launch

config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=sys.argv[1],
    rdzv_endpoint=sys.argv[2], rdzv_backend="rallypoint",
)
for name in sys.argv[4:]:
    elastic_launch(config, sys.executable)(sys.argv[3], name)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path) as made:
        yield made


def variables_in(path: Path) -> tuple[str, set[str]]:
    """Return how many workers met, and the variables about access that one had."""
    count, *names = path.read_text().split()
    return count, {name for name in names if "TOKEN" in name or name.startswith("RALLYPOINT_TLS")}


OF_A_WORKER = {"RALLYPOINT_WORKER_TOKEN", "RALLYPOINT_TLS", "RALLYPOINT_TLS_CA"}
OF_A_WORKER |= {"RALLYPOINT_TLS_CERT", "RALLYPOINT_TLS_KEY"}


@pytest.mark.long
def test_torchrun(site: Guarded) -> None:
    """Through our back end, which reads the variables."""
    path = site.folder / "met"
    launcher = torchrun(site.world, "a", nproc=2, script=(SCRIPT, str(path)), env=site.variables())

    assert launcher.wait() == 0, launcher.stderr()
    count, names = variables_in(path)
    assert count == "2"
    assert names | {"RALLYPOINT_TLS"} == OF_A_WORKER


@pytest.mark.long
def test_elastic_launch(site: Guarded) -> None:
    """Several times in one program."""
    program = site.folder / "program.py"
    program.write_text(PROGRAM)
    paths = [site.folder / name for name in ("first", "second")]
    done = site.world.run(
        *(sys.executable, str(program), site.world.job_id, site.world.target, SCRIPT),
        *map(str, paths),
        env=site.variables(),
    )

    assert done.returncode == 0, done.stderr
    assert [variables_in(path) for path in paths] == [("2", OF_A_WORKER)] * 2


def test_built_in_coordinator_needs_nothing(world: World, tmp_path: Path) -> None:
    """Whatever the variables say about others, and its workers connect to it as it is."""
    path = tmp_path / "met"
    environment = {"RALLYPOINT_TLS_CA": "/nowhere", "RALLYPOINT_TOKEN_FILE": "/nowhere"}
    argv = world.standalone("--nproc-per-node=2", script=(SCRIPT, str(path)))
    done = world.run(*argv, env=environment)

    assert done.returncode == 0, done.stderr
    assert variables_in(path) == ("2", {"RALLYPOINT_WORKER_TOKEN"})
