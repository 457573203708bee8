"""What end-to-end tests share: a coordinator for all tests, and a world for each."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support.scenarios")

from support.languages.examples import share_nodejs_client  # noqa: E402
from support.languages.nodejs_client import Client  # noqa: E402
from support.processes.commands import Command  # noqa: E402  # after the line above
from support.processes.world import NEW, World  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def no_nohup() -> Iterator[None]:
    """Agents start with the default SIGHUP, even if the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # what is handled is reset by exec
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("shared"), "localhost:1") as world:
        yield world


@pytest.fixture(scope="session")
def shared_coordinator(shared_world: World) -> Command:
    """A coordinator for every test that does not harm it. Each test has a separate job."""
    shared_world.forgets = False
    return shared_world.coordinator(0, *NEW)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Client:
    """The example in Node.js, installed."""
    return Client(share_nodejs_client(tmp_path_factory))


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short name: paths of sockets end at 107 bytes, and the agents make some."""
    folder = tmp_path_factory.mktemp("t")
    print(f"the files of this test: {folder}")  # shown when it fails
    return folder


@pytest.fixture
def world(tmp_path: Path, shared_world: World, shared_coordinator: Command) -> Iterator[World]:
    assert shared_coordinator.is_running(), shared_coordinator.stderr()
    with World(tmp_path, shared_world.target) as world:
        yield world


@pytest.fixture
def forgetful(world: World) -> None:
    """The coordinators of this test know after a restart only what agents tell them."""
    world.forgets = True
