"""A newer build on the journal of this one, and this one on the journal of a newer build."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from msgspec import Struct

from rallypoint.server.journal.codec import batches
from rallypoint.v1 import coordinator_service_pb2, coordinator_service_pb2_grpc, job_pb2
from support.docs.pages import REPOSITORY
from support.processes.commands import COORDINATOR, Command
from support.processes.feed import LIMIT_S
from support.processes.jobs import Jobs, is_started, pids
from support.processes.world import World

VERSION = "9.1.0"
FORMAT = batches.FORMAT + 1
"""Of the journal."""
ROOTS = ("agent", "base", "cli", "client", "elastic", "proto", "server")
_RECORD_PROTO = "rallypoint/journal/v1/record.proto"


class Package(Struct, frozen=True):
    """The commands of an installed package."""

    node_agent: str
    coordinator: str


def write_command(folder: Path, name: str, function: str) -> str:
    """Write a command that an environment runs; return its path."""
    path = folder / "bin" / name
    lines = (
        f"#!{folder}/bin/python",
        "import sys",
        f"from rallypoint.cli.main import {function}",
        f"sys.exit({function}())",
    )
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return str(path)


def install_following(folder: Path) -> Package:
    """Make the package below a folder, as the next release could be.

    It is this checkout with a higher version, a higher format of the journal, and one more field in
    a record, which it writes. Its dependencies are this checkout's.
    """
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    for root in ROOTS:
        shutil.copytree(
            REPOSITORY / root / "rallypoint",
            packages / "rallypoint",
            ignore=shutil.ignore_patterns("__pycache__"),
            dirs_exist_ok=True,
        )
    _grow(packages)
    facts = packages / f"rallypoint-{VERSION}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: rallypoint\nVersion: {VERSION}\n"
    )
    # As a path: the .pth files there, among them that of this checkout, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Package(
        write_command(environment, "node-agent", "node_agent"),
        write_command(environment, "coordinator", "coordinator"),
    )


def _grow(packages: Path) -> None:
    """Add a field to a record, in its struct, its message and its stub, and raise the format."""
    server = packages / "rallypoint" / "server"
    _replace(
        packages / _RECORD_PROTO,
        "message EpochRaised {\n",
        "message EpochRaised {\n  // Version of the coordinator.\n"
        "  optional string version = 900;\n",
    )
    _replace(
        server / "core" / "messages" / "records.py",
        "    resumed: bool = False\n",
        f"    resumed: bool = False\n    version: str = {VERSION!r}\n",
    )
    codec = server / "journal" / "codec" / "batches.py"
    _replace(codec, f"FORMAT = {FORMAT - 1}\n", f"FORMAT = {FORMAT}\n")
    command = (sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={packages}")
    subprocess.run([*command, f"--python_out={packages}", _RECORD_PROTO], check=True)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path.name} has {text.count(old)} of {old!r}"
    path.write_text(text.replace(old, new))


FLAGS = ("--last-call=60", "--max-restarts=3")


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return install_following(tmp_path_factory.mktemp("following"))


def start(world: World, coordinator: str, port: int, state: str) -> Command:
    """Start a build of the coordinator; talk to it from now on."""
    argv = [coordinator, "--host=127.0.0.1", f"--port={port}", f"--state={state}"]
    command = world.start("coordinator", argv)
    world.target = command.stdout_line().removeprefix("listening on ")
    world.jobs.channel.close()
    world.jobs = Jobs(world.target)
    return command


def stop(command: Command) -> None:
    command.signal(signal.SIGTERM)
    assert command.wait() == 0, command.stderr()


def version_of(world: World) -> str:
    stub = coordinator_service_pb2_grpc.CoordinatorServiceStub(world.jobs.channel)
    request = coordinator_service_pb2.GetCoordinatorRequest()
    return stub.GetCoordinator(request, timeout=LIMIT_S).coordinator.version


@pytest.mark.long
def test_no_worker_notices_an_upgrade(world: World, following: Package, tmp_path: Path) -> None:
    """SIGTERM, then a newer build on the same journal: the job continues with its round, workers
    and restart count. The older build refuses the journal from then on, and changes nothing."""
    port, state = world.ports.reserve(), f"sqlite:{tmp_path / 'journal.sqlite'}"
    older = start(world, COORDINATOR, port, state)
    agents = [world.agent(name, *FLAGS, nnodes="2") for name in "ab"]
    world.mailbox.workers(2)[1].tell("exit", "3")
    workers = world.mailbox.workers(2, round=2)
    before = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))

    stop(older)
    for agent in agents:
        agent.wait_event("coordinator_not_reached")
    newer = start(world, following.coordinator, port, state)
    for agent in agents:
        agent.wait_event("coordinator_reached_again")
    after = world.jobs.wait(world.job_id, lambda job: is_started(job, 2))
    found = version_of(world)
    workers[0].tell("exit", "3")  # the newer one writes its own records, too
    world.mailbox.workers(2, round=3)
    world.jobs.wait(world.job_id, lambda job: is_started(job, 3))

    stop(newer)
    refused = world.run(COORDINATOR, "--host=127.0.0.1", f"--port={port}", f"--state={state}")
    start(world, following.coordinator, port, state)
    for worker in world.mailbox.workers(2, round=3):
        worker.tell("exit", "0")

    assert VERSION == found
    assert before.round.header == after.round.header
    assert pids(before) == pids(after) == [worker.pid for worker in workers]
    assert (before.restart_count, after.restart_count) == (1, 1)
    assert [round.number for round in after.history] == [1]
    assert [agent.wait() for agent in agents] == [0, 0]
    assert len(world.mailbox.started()) == 6
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert "a newer rallypoint wrote the journal" in line and "upgrade this coordinator" in line
    assert (
        world.jobs.wait(
            world.job_id, lambda job: job.phase == job_pb2.JOB_PHASE_CLOSED
        ).restart_count
        == 2
    )
