"""When torch calls `shutdown`, and with which exception: the torch that is installed does it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo
from torch.distributed.elastic.rendezvous.api import (
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from torch.distributed.launcher import api as launcher_api
from torch.distributed.launcher.api import LaunchConfig, launch_agent

from rallypoint.torch.rendezvous.endings import is_crash_of_spare, is_too_early


class Recording(RendezvousHandler):
    """Forms no round, and notes how `shutdown` is called."""

    def __init__(self, why: Exception) -> None:
        self.why = why
        self.ends: list[BaseException | None] = []
        """What was on its way at each call."""
        self.early: list[bool] = []
        """Whether each was judged to be too early."""

    def get_backend(self) -> str:
        return "recording"

    def next_rendezvous(self) -> RendezvousInfo:
        raise self.why

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "j"

    def shutdown(self) -> bool:
        self.ends.append(sys.exc_info()[1])
        self.early.append(is_too_early(sys._getframe(1)))
        return True

    def is_late(self) -> bool:
        """Return whether the last call alone is judged to be the end: before 2.8 torch has two."""
        return self.early == [True] * (len(self.early) - 1) + [False]


def launch(handler: Recording, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """Run torch's launcher with a handler; return how it ends."""

    class Registry:
        get_rendezvous_handler = staticmethod(lambda _: handler)

    monkeypatch.setattr(launcher_api, "rdzv_registry", Registry)
    config = LaunchConfig(1, 1, 1, run_id="j", rdzv_backend="recording", rdzv_endpoint="h:1")
    with pytest.raises(BaseException) as ended:  # whatever torch makes of it
        launch_agent(config, "true", [])
    return ended.value


def test_crash_after_a_graceful_exit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent has no result then, and torch takes an attribute of that."""
    handler = Recording(RendezvousGracefulExitError("not needed"))
    ended = launch(handler, monkeypatch)

    assert ended == handler.ends[-1]
    assert is_crash_of_spare(ended), repr(ended)
    assert handler.is_late()


def test_other_failures_are_no_crash_of_a_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch calls `shutdown` with then."""
    handler = Recording(RendezvousStateError("is_failed"))
    ended = launch(handler, monkeypatch)

    assert isinstance(ended, RendezvousStateError)
    assert ended == handler.ends[-1]
    assert not is_crash_of_spare(ended)
    assert handler.is_late()


@pytest.mark.parametrize(
    ("error", "is_crash"),
    [
        (AttributeError("is_failed"), False),
        (AttributeError("'X' has no attribute 'y'", name="y", obj=None), False),
        (AttributeError("other words", name="is_failed", obj=None), True),
        (AttributeError("'X' has no attribute 'is_failed'", name="is_failed", obj=3), False),
        (None, False),
    ],
)
def test_crash_of_a_spare_is_an_attribute_of_nothing(
    error: BaseException | None, is_crash: bool
) -> None:
    """The words of the message do not matter."""
    assert is_crash == is_crash_of_spare(error)


class OldAgent(LocalElasticAgent):
    """Stops its workers as torch did before 2.8: then the handler's `shutdown` is called too."""

    def _shutdown(self, *_: Any, **__: Any) -> None:
        self._worker_group.spec.rdzv_handler.shutdown()


def test_shutdown_by_an_agent_that_runs_is_too_early() -> None:
    """Whatever class the agent has: the launcher calls `shutdown` again at the end."""
    handler = Recording(RendezvousGracefulExitError("not needed"))
    spec = WorkerSpec("worker", 1, handler, entrypoint="true")
    OldAgent(spec, DefaultLogsSpecs()).run()
    handler.shutdown()

    assert [True, False] == handler.early
