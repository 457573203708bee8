"""How the tests are spread over processes that run side by side (pytest-xdist)."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rallypoint.base import log, names
from rallypoint.wire.loading import load_grpc
from support.machines.resolver import Resolver, install
from support.processes.processes import Witness
from support.tries.commit import find_commit
from support.tries.drawing import Drawing
from support.tries.skips import Skips
from support.tries.times import Meter, Times

load_grpc()  # as agents do: handlers of fork crash children while other threads are in gRPC

HERE = Path(__file__).parent
FIRST = (
    "tests/e2e/slurm/",
    "tests/e2e/durable/test_coordinator_crash.py",
    "tests/e2e/failures/test_soak.py",
    "tests/e2e/operations/test_refused_calls.py",
    "tests/e2e/failures/test_silence.py::test_long_lease",
    "tests/e2e/release/",
    "tests/docs/test_commands.py::test_commands_run_as_printed[install.md:",
    "tests/sim/test_explore.py::test_small_world_is_safe_in_every_order[workers ",
    "tests/sim/test_simulation.py::test_many_seeds",
)
"""Tests that take so long that nothing would run beside them at the end."""
LATER = ("unit",)
"""Folders whose tests begin when all others have begun: the small change fills up the end."""
TOGETHER = (
    "tests/unit/",
    "tests/e2e/launching/test_examples.py",
    "tests/e2e/launching/test_torchrun_names.py",
    "tests/e2e/slurm/",
)
"""Files that stay whole: their tests take milliseconds, or share what is made once a module."""

LANES = (
    (
        "tests/e2e/failures/test_coordinator_death.py::test_coordinator_that_is_told_to_end",
        "tests/e2e/failures/test_grandchildren.py",
        "tests/e2e/launching/test_logs_specs.py::test_real_plugin",
        "tests/e2e/operations/test_output.py::test_flood",
        "tests/e2e/torch/test_process_groups.py",
    ),
    (
        "tests/docs/test_commands.py::test_commands_run_as_printed[README.md:",
        "tests/e2e/failures/test_network.py::test_node_that_is_cut_off",
        "tests/e2e/failures/test_silence.py::test_each_job_waits",
        "tests/e2e/operations/test_output.py::test_console_that_stands_still",
    ),
)
LAST = tuple(test for lane in LANES for test in lane)
"""Tests of how soon something happens, and those in which so many processes import torch at once
that they would reach their limits beside others. They run last, one of each lane at a time; those
of the second lane wait, or have wide limits."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Find the tests without looking for garbage, and keep what was found out of every later look.

    Each process finds thousands of tests, of which none is garbage; a look at all takes long.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)  # once those that shall not run are out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Of the long tests, what stays whole would take longest at the end, with nothing beside it.
    is_shared = hasattr(config, "workerinput")  # alone, the tests of a module stay together
    folders = [item.path.relative_to(HERE).parts[0] for item in items]
    sizes, seen = Counter(folders), Counter[str]()
    places: dict[str, tuple[bool, int, bool, float]] = {}
    for item, folder in zip(items, folders, strict=True):
        is_long = item.get_closest_marker("long") is not None
        is_early = is_long and item.nodeid.startswith(TOGETHER)
        usual = len(FIRST) + (not is_early)
        rank = next((at for at, one in enumerate(FIRST) if item.nodeid.startswith(one)), usual)
        is_last = item.nodeid.startswith(LAST)
        # Simulations need a processor, and other tests wait: some of each run at any time.
        share = 0.0 if folder in LATER or not is_shared else seen[folder] / sizes[folder]
        seen[folder] += 1
        places[item.nodeid] = is_last, rank, folder in LATER, share
    items.sort(key=lambda item: places[item.nodeid])


@pytest.fixture(autouse=True)
def _structlog() -> Iterator[None]:
    """Let each test begin with a log that no test before it has configured."""
    yield
    log.configure(None)
    log.use_logger(None)
    if structlog := sys.modules.get("structlog"):
        structlog.reset_defaults()


class Turns:
    """Lets the tests in LAST wait until every process has done its part of the others.

    Each process holds a shared lock on one file until its session ends, or until it comes to a test
    in LAST. Then it waits until nobody holds the lock.
    """

    def __init__(self, run_id: str) -> None:
        path = Path(tempfile.gettempdir()) / f"rallypoint-tests-{run_id}.lock"
        self._file = path.open("a")
        self._path = path
        self._is_last = False
        fcntl.flock(self._file, fcntl.LOCK_SH)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Wait before the time limit of the test begins to count."""
        if item.nodeid.startswith(LAST) and not self._is_last:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # gives up the shared lock while it waits
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._is_last = True
        return (yield)

    def pytest_sessionfinish(self) -> None:
        if self._is_last:
            self._path.unlink(missing_ok=True)
        self._file.close()


def pytest_report_header() -> str:
    return f"seeds of commit {find_commit()}: COMMIT={find_commit()} runs them again"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", dest="budget_s", type=float, help="seconds that a run may take")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a command in the background may ignore these signals for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    # No coordinator that a test starts may find the journal of another, or of this user; and no
    # command may find or change the contexts of this user.
    state = tempfile.TemporaryDirectory(prefix="rallypoint-state-")
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = state.name
    config.add_cleanup(state.cleanup)
    worker: dict[str, str] | None = getattr(config, "workerinput", None)
    if worker is not None:
        config.pluginmanager.register(Turns(worker["testrunuid"]))
    else:
        os.environ["COMMIT"] = find_commit()  # for the processes that run tests for this one
        config.pluginmanager.register(Times(config.getoption("budget_s")))
        config.pluginmanager.register(Skips())
    config.pluginmanager.register(Meter())
    config.pluginmanager.register(Drawing(LAST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Hand out tests one by one, but for the files that stay whole.

    It is what `--dist loadgroup` is for, which does nothing with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # the order is that of the collection
    scheduling: object = LoadScopeScheduling(config, log)
    vars(scheduling)["_split_scope"] = _find_scope
    return scheduling


def _find_scope(nodeid: str) -> str:
    """Return what a test is handed out with: its file, itself, or others that run last."""
    for number, tests in enumerate(LANES):
        if nodeid.startswith(tests):
            return f"lane {number}"
    return nodeid.partition("::")[0] if nodeid.startswith(TOGETHER) else nodeid


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """Yield a resolver that answers in place of the system's."""
    made = install(monkeypatch)
    yield made
    made.release_all()
    names.forget()


@pytest.fixture
def witness() -> Iterator[Witness]:
    """Yield what sees processes die that are no children of this one."""
    witness = Witness()
    yield witness
    witness.close()
