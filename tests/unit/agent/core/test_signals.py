"""What a signal to the agent does, by what it is for and by how far the agent is; and its flag."""

import argparse
import signal

import pytest

from rallypoint.agent.core import inputs
from rallypoint.agent.core.model import AgentState, DesiredRun, DesiredStop
from rallypoint.agent.core.step import step
from rallypoint.cli.agent_flags.signals import signal_list
from support.orders import run_order

ORDER = run_order()
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
WAITING = (inputs.PortReserved(30_000), inputs.Welcomed(1))
STARTING = (*WAITING, inputs.DesiredCame(1, 1, DesiredRun(ORDER)))
RUNNING = (*STARTING, inputs.WorkerStarted(1, 0, 4_000), inputs.WorkerStarted(1, 1, 4_001))
ONE_LEFT = (*RUNNING, inputs.WorkerEnded(1, 0, 0, None, None, ""))
DONE = (*ONE_LEFT, inputs.WorkerEnded(1, 1, 0, None, None, ""))
STOPPED = (*RUNNING, inputs.DesiredCame(1, 2, DesiredStop(1, 30_000, "why")))
ENDING = (*RUNNING, inputs.SignalReceived(INT))
HURRIED = (*ENDING, inputs.SignalReceived(TERM))
LOST = (*HURRIED, inputs.Swept(1), inputs.PortReserved(30_001))
"""All is over: the agent has only to exit."""


def after(said: tuple[inputs.Input, ...]) -> AgentState:
    """Return an agent with two workers that has heard this."""
    state = AgentState(2, grace_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0)
    for one in said:
        state, _ = step(state, one, 1_000)
    return state


@pytest.mark.parametrize(
    ("said", "round"),
    [
        ((), None),
        (WAITING, None),
        (STARTING, 1),
        (RUNNING, 1),
        (ONE_LEFT, 1),
        (DONE, None),
        (STOPPED, None),
        (ENDING, None),
        (LOST, None),
    ],
)
@pytest.mark.parametrize("signum", [USR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGRTMIN])
def test_signal_for_telling_changes_nothing(
    said: tuple[inputs.Input, ...], round: int | None, signum: int
) -> None:
    """It is passed on while workers run that were not told to stop; else it is said unheard."""
    before = after(said)

    state, effects = step(before, inputs.SignalReceived(signum), 1_000)

    assert (state, effects) == (before, (inputs.ForwardSignal(signum, round),))


@pytest.mark.parametrize(
    ("said", "effects"),
    [
        ((), [inputs.Exit(143, "the agent got signal 15")]),
        (WAITING, [inputs.Exit(143, "the agent got signal 15")]),
        (STARTING, [inputs.SignalWorkers(TERM)]),
        (RUNNING, [inputs.SignalWorkers(TERM)]),
        (DONE, [inputs.Sweep(1)]),
        (STOPPED, []),
        (ENDING, [inputs.Sweep(1)]),
        (HURRIED, []),
        (LOST, []),
    ],
)
def test_signal_for_ending(said: tuple[inputs.Input, ...], effects: list[inputs.Effect]) -> None:
    """The first stops the workers, the second kills them, later ones find everything done."""
    before = after(said)

    state, done = step(before, inputs.SignalReceived(TERM), 1_000)

    assert [one for one in done if not isinstance(one, inputs.SendReports)] == effects
    assert state.ending is not None
    assert state.ending.exit_code == 128 + (INT if before.ending else TERM)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SIGTERM", "TERM"),
        ("term", "TERM"),
        ("SigUsr1, int,USR2", "USR1 INT USR2"),
        ("TERM,TERM,SIGTERM", "TERM"),
        ("15", "TERM"),
        ("rtmin", "RTMIN"),
    ],
)
def test_names_of_signals(text: str, names: str) -> None:
    """With or without SIG, in any case, each once, in the order given."""
    assert [one.name.removeprefix("SIG") for one in signal_list(text)] == names.split()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not a signal that a program can catch"),
        ("TERM,", "'' is not a signal that a program can catch"),
        ("TERM,KILL", "'KILL' is not a signal that a program can catch"),
        ("sigstop", "'sigstop' is not a signal that a program can catch"),
        ("SIGFOO", "'SIGFOO' is not a signal that a program can catch"),
        ("99", "'99' is not a signal that a program can catch"),
        ("TERM,PIPE,SEGV", "SIGPIPE comes of the agent's own doings"),
    ],
)
def test_names_that_are_refused(text: str, why: str) -> None:
    """What cannot be caught, is unknown, or is no news for workers is named."""
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        signal_list(text)

    assert str(refused.value) == why
