"""What end-to-end tests share: a coordinator for all of them, and a world for each."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support.scenarios")

from support.commands import Command  # noqa: E402  # after the line above
from support.world import World  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def no_nohup() -> Iterator[None]:
    """Agents start with SIGHUP as it is on a terminal, also where the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)  # what is handled is reset by exec
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def shared_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("shared"), "localhost:1") as world:
        yield world


@pytest.fixture(scope="session")
def shared_coordinator(shared_world: World) -> Command:
    """A coordinator for every test that does not harm it: each has a job of its own.

    One for all, because a coordinator without memory seals nothing in its first 2.5 s.
    """
    return shared_world.coordinator(port=0)


@pytest.fixture
def world(tmp_path: Path, shared_world: World, shared_coordinator: Command) -> Iterator[World]:
    assert shared_coordinator.is_running(), shared_coordinator.stderr()
    with World(tmp_path, shared_world.target) as world:
        yield world
