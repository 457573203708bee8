"""What a signal to the agent does, by what it means and what the agent is doing; and its flag."""

import signal

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredStop
from rallypoint.agent.core.leaving.signals import DEFAULT_SIGNALS, describe_signal
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import step
from rallypoint.agent.helper.frames import IGNORED_SIGNALS
from rallypoint.base.values import BadValue
from rallypoint.cli.flags.agent.signals import signal_list
from support.core.orders import run_order

ORDER = run_order()
TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1
WAITING = (inputs.PortReserved(30_000), inputs.Welcomed(1))
STARTING = (*WAITING, inputs.DesiredReceived(1, 1, ORDER))
RUNNING = (*STARTING, inputs.WorkerStarted(1, 0, 4_000), inputs.WorkerStarted(1, 1, 4_001))
ONE_LEFT = (*RUNNING, inputs.WorkerEnded(1, 0, 0, None, None, ""))
DONE = (*ONE_LEFT, inputs.WorkerEnded(1, 1, 0, None, None, ""))
STOPPED = (*RUNNING, inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why")))
ENDING = (*RUNNING, inputs.SignalReceived(INT))
HURRIED = (*ENDING, inputs.SignalReceived(TERM))
LOST = (*HURRIED, inputs.Swept(1), inputs.PortReserved(30_001))
"""Everything is over: the agent has only to exit."""


def after(happened: tuple[inputs.Input, ...]) -> AgentState:
    """Return an agent with two workers after these inputs."""
    state = AgentState(
        2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=60_000, away_since_ms=0
    )
    for one in happened:
        state, _ = step(state, one, 1_000)
    return state


@pytest.mark.parametrize(
    ("before", "round"),
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
def test_signal_that_is_only_forwarded_changes_nothing(
    before: tuple[inputs.Input, ...], round: int | None, signum: int
) -> None:
    """It is forwarded to the workers of a running round; else it is only logged."""
    state = after(before)

    assert step(state, inputs.SignalReceived(signum), 1_000) == (
        state,
        (effects.ForwardSignal(signum, round),),
    )


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((), [effects.Exit(143, "received SIGTERM")]),
        (WAITING, [effects.Exit(143, "received SIGTERM")]),
        (STARTING, [effects.SignalWorkers(TERM)]),
        (RUNNING, [effects.SignalWorkers(TERM)]),
        (DONE, [effects.Sweep(1)]),
        (STOPPED, []),
        (ENDING, [effects.Sweep(1)]),
        (HURRIED, []),
        (LOST, []),
    ],
)
def test_signal_that_ends_the_agent(
    before: tuple[inputs.Input, ...], expected: list[effects.Effect]
) -> None:
    """The first stops the workers, the second kills them, later ones change nothing."""
    is_ending = after(before).ending is not None

    state, done = step(after(before), inputs.SignalReceived(TERM), 1_000)

    assert expected == [one for one in done if not isinstance(one, effects.SendReports)]
    assert state.ending is not None
    assert state.ending.exit_code == 128 + (INT if is_ending else TERM)


@pytest.mark.parametrize("signum", [TERM, INT])
def test_worker_whose_start_is_learned_of_late_gets_one_signal(signum: int) -> None:
    """It is the one that ends the agent. A SIGTERM after SIGINT would kill it in its clean-up."""
    state, first = step(after(STARTING), inputs.SignalReceived(signum), 1_000)
    state, then = step(state, inputs.WorkerStarted(1, 0, 4_000), 1_000)
    _, last = step(state, inputs.WorkerStarted(1, 1, 4_001), 1_000)

    signals = [one for one in (*first, *then, *last) if isinstance(one, effects.SignalWorkers)]
    assert signals == [effects.SignalWorkers(signum)]


@pytest.mark.parametrize(
    ("signum", "text"), [(INT, "interrupted (SIGINT)"), (signal.SIGHUP, "received SIGHUP")]
)
def test_signal_is_named(signum: int, text: str) -> None:
    """The agent ends with a message that names the signal."""
    assert describe_signal(signum) == text


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
        ("TERM,PIPE,SEGV", "SIGPIPE cannot be forwarded: the agent uses it itself"),
    ],
)
def test_names_that_are_refused(text: str, why: str) -> None:
    """What cannot be caught, is unknown, or is no news for workers is named."""
    with pytest.raises(BadValue) as refused:
        signal_list(text)

    assert str(refused.value) == why


def test_helper_outlives_the_signals_that_end_the_agent() -> None:
    """It has to stop the workers; it cannot import the agent's list."""
    assert set(DEFAULT_SIGNALS) <= set(IGNORED_SIGNALS)
