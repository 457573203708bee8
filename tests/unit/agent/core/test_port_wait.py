"""A port that cannot be reserved: the node tries again, and can still leave."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap

import pytest

from rallypoint.agent.core import effects, inputs
from rallypoint.agent.core.desired import DesiredEnd, DesiredStop
from rallypoint.agent.core.reports import GoodbyeKind, GoodbyeReport, ReadyReport
from rallypoint.agent.core.state import AgentState
from rallypoint.agent.core.step import next_deadline_ms, step
from support.core.orders import run_order

MISSING = inputs.PortNotReserved("Too many open files")
TIMEOUT_MS = 60_000
CLEAN = (
    inputs.PortReserved(30_000),
    inputs.Welcomed(1),
    inputs.DesiredReceived(1, 1, run_order()),
    inputs.WorkerStarted(1, 0, 4_000),
    inputs.WorkerStarted(1, 1, 4_001),
    inputs.DesiredReceived(1, 2, DesiredStop(1, 30_000, "why")),
    inputs.WorkerEnded(1, 0, 0, None, None, ""),
    inputs.WorkerEnded(1, 1, 0, None, None, ""),
    inputs.Swept(1),
)
"""A node that is clean again after a round, and asks for the port of the next one."""


class Bench:
    """One agent, with the effects of its last step."""

    def __init__(self, *happened: inputs.Input) -> None:
        self.state = AgentState(
            2, shutdown_timeout_ms=30_000, coordinator_timeout_ms=TIMEOUT_MS, away_since_ms=0
        )
        self.now_ms = 1_000
        self.done: list[effects.Effect] = []
        for one in happened:
            self.post(one)

    def post(self, input: inputs.Input) -> None:
        self.state, done = step(self.state, input, self.now_ms)
        self.done = [one for one in done if not isinstance(one, effects.SendReports)]

    def wait(self) -> int:
        """Let time pass until the next deadline; return how long that took."""
        due_ms = next_deadline_ms(self.state)
        assert due_ms is not None
        passed_ms, self.now_ms = due_ms - self.now_ms, due_ms
        self.post(inputs.TimePassed())
        return passed_ms


@pytest.mark.parametrize("before", [CLEAN, ()])
def test_reservation_is_repeated_with_growing_pauses(before: tuple[inputs.Input, ...]) -> None:
    """Each pause is twice as long as the one before, up to five seconds."""
    bench = Bench(*before)
    pauses_ms = []
    for _ in range(8):
        bench.post(MISSING)
        assert bench.done == []
        pauses_ms.append(bench.wait())
        assert bench.done == [effects.ReservePort()]

    assert pauses_ms == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]


def test_node_is_ready_once_it_has_a_port() -> None:
    """It was not before, and makes no further attempt."""
    bench = Bench(*CLEAN, MISSING)
    assert not any(isinstance(report, ReadyReport) for report in bench.state.reports)
    bench.wait()
    bench.post(inputs.PortReserved(30_001))

    assert bench.state.reports[-1] == ReadyReport(1, 30_001)
    assert (bench.state.held, bench.state.port_wait) == (None, None)
    assert next_deadline_ms(bench.state) is None


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        (inputs.SignalReceived(15), 143),
        (inputs.DesiredReceived(1, 3, DesiredEnd(0, "done")), 0),
        (inputs.AgentFailed("bad"), 70),
    ],
)
@pytest.mark.parametrize("missing", [(), (MISSING,)])
def test_node_without_a_port_can_leave(
    missing: tuple[inputs.Input, ...], ends: inputs.Input, code: int
) -> None:
    """A signal and the coordinator end the agent at once, before and after the failed attempt."""
    bench = Bench(*CLEAN, *missing)
    bench.post(ends)

    (exit,) = bench.done
    assert isinstance(exit, effects.Exit) and exit.code == code
    assert isinstance(bench.state.reports[-1], GoodbyeReport)
    assert next_deadline_ms(bench.state) is None


def test_leaving_node_asks_for_no_port() -> None:
    """The processes of its workers are gone: it says Goodbye and exits."""
    bench = Bench(*CLEAN[:-1], inputs.SignalReceived(15))
    bench.post(inputs.Swept(1))

    assert bench.done == [effects.Exit(143, "received SIGTERM")]


@pytest.mark.parametrize("before", [CLEAN, ()])
def test_agent_gives_up_after_the_timeout(before: tuple[inputs.Input, ...]) -> None:
    """It waits for a port as long as for a coordinator, and then names the reason."""
    bench = Bench(*before)
    began_ms = bench.now_ms
    while bench.state.ending is None:
        bench.post(MISSING)
        bench.wait()
    text = "no port could be reserved for 60 s: Too many open files"

    assert bench.done == [effects.Exit(1, text)]
    assert bench.state.reports[-1] == GoodbyeReport(GoodbyeKind.ERROR, text)
    assert bench.now_ms == began_ms + TIMEOUT_MS


RESERVES = textwrap.dedent("""
    import resource
    from rallypoint.agent.machine.ports import PortReserver
    ports = PortReserver()
    ports.reserve()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try:
        ports.reserve()
    except OSError as error:
        print(error.errno)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    print(ports.reserve() > 0)
""")


def test_reserver_survives_a_lack_of_descriptors() -> None:
    """It raises while no socket can be opened, and works afterwards."""
    program = [sys.executable, "-c", RESERVES]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == [str(errno.EMFILE), "True"]
