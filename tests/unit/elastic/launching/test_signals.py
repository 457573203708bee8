"""Signals to a program that launches: what they raise, and what they must not interrupt."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint.agent.helper.host import WorkerHost
from rallypoint.elastic import LaunchConfig, SignalException, elastic_launch
from rallypoint.elastic.agents import signal_gate
from rallypoint.elastic.agents.signal_gate import SignalGate
from rallypoint.elastic.functions import FunctionLaunch


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Fail if a test leaves other handlers."""
    handled = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(one) for one in handled]
    yield
    assert [signal.getsignal(one) for one in handled] == before


def test_second_signal_does_not_interrupt_the_way_out() -> None:
    """The first one raises; until everything is freed, no other one does."""
    gate, steps = SignalGate((signal.SIGTERM,), lambda: None), []
    with pytest.raises(SignalException) as raised, gate.handling():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            gate.hold()
            signal.raise_signal(signal.SIGTERM)
            steps.append("freed")
    assert (raised.value.sigval, steps) == (signal.SIGTERM, ["freed"])


@pytest.mark.parametrize("is_handled", [True, False])
def test_interrupt_on_the_way_out(is_handled: bool) -> None:
    """It is raised when everything is freed, also where interrupts are not handled signals."""
    gate, steps = SignalGate((signal.SIGINT,) if is_handled else (), lambda: None), []
    with pytest.raises(SignalException if is_handled else KeyboardInterrupt), gate.handling():
        gate.hold()
        signal.raise_signal(signal.SIGINT)
        steps.append("freed")
    assert steps == ["freed"]


def test_signal_while_the_agent_joins() -> None:
    """It is raised as soon as the agent can leave."""
    gate, steps = SignalGate((signal.SIGTERM,), lambda: None), []
    with pytest.raises(SignalException), gate.handling():
        with gate.holding():
            signal.raise_signal(signal.SIGTERM)
            steps.append("joined")
        steps.append("unreached")
    assert steps == ["joined"]


def test_program_that_catches_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later signal raises again, and a launch that continues to its end raises there."""
    monkeypatch.setattr(signal_gate, "QUIET_S", 0)
    gate, caught = SignalGate((signal.SIGTERM,), lambda: None), 0
    with pytest.raises(SignalException), gate.handling():
        for _ in range(2):
            try:
                signal.raise_signal(signal.SIGTERM)
            except SignalException:  # as an event handler of the program may do
                caught += 1
    assert caught == 2


def interrupt(*_: object) -> object:
    """Stand for `pickle.load`."""
    raise SignalException("got SIGTERM", signal.SIGTERM)


def test_signal_while_a_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for a value that cannot be unpickled."""
    call = FunctionLaunch(os.getpid)
    try:
        assert call.launch.function is not None
        file = Path(call.launch.function.result_file(1, 0))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        monkeypatch.setattr("rallypoint.elastic.functions.pickle.load", interrupt)
        with pytest.raises(SignalException):
            call.results(1, (0,))
    finally:
        call.close()


def test_failed_launch_leaves_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine refuses after the helper has started ends the helper."""
    hosts: list[WorkerHost] = []
    start = WorkerHost.launch

    def launch() -> WorkerHost:
        hosts.append(start())
        return hosts[-1]

    monkeypatch.setattr(WorkerHost, "launch", launch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    config = LaunchConfig(1, 1, nproc_per_node=2, virtual_local_rank=True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=0"):
        elastic_launch(config, os.getpid)()
    assert [os.path.exists(f"/proc/{host.pid}") for host in hosts] == [False]
