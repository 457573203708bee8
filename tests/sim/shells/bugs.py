"""Planted bugs of the shells: each replaces one function of the product, and a rule must notice it.

The functions are the product's own, so a bug that no longer fits them fails to apply instead of
proving nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from rallypoint.agent import agent as agent_module
from rallypoint.agent.agent import Agent
from rallypoint.agent.helper.events import Exited
from rallypoint.agent.round.exits import ExitReports, Worker
from rallypoint.agent.round.helper_watch import HelperWatch
from rallypoint.agent.round.round import Round
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.session import translate
from rallypoint.agent.session.exchange import Exchange
from rallypoint.agent.session.link import Link
from rallypoint.server.agents import outbox
from rallypoint.server.agents.outbox import Outbox, Outboxes
from rallypoint.server.agents.service import AgentService
from rallypoint.server.core.memory import restore
from rallypoint.server.core.messages.effects import Send
from rallypoint.server.core.model.desired import DesiredRun
from rallypoint.server.journal.interface import JournalFailed
from rallypoint.server.shell import beginning
from rallypoint.server.shell import coordinator as coordinator_module
from rallypoint.server.shell.clock import wall_ms
from rallypoint.server.shell.coordinator import Coordinator
from rallypoint.server.shell.listeners import Listeners
from sim.seeds.planting import Bug, Patch
from sim.shells.loop import BOOT_UNIX_NS, START_NS


def _forget_to_wake_the_writer() -> list[Patch]:
    """Put a desired state into the outbox, and let it wait for the next wake-up."""
    real = vars(outbox)["_put"]

    def put(box: Outbox, effect: Any) -> None:
        if isinstance(effect, Send):
            box.desired = effect
            box.runs_workers = isinstance(effect.desired, DesiredRun)
        else:
            real(box, effect)

    return [(outbox, "_put", put)]


def _forget_to_wake_the_link() -> list[Patch]:
    """Let reports wait for the next heartbeat."""
    return [(Link, "wake", lambda self: None)]


def _act_before_hearing() -> list[Patch]:
    """Carry out effects at the start of a turn, before its inputs: they are those of the last."""
    real = Listeners.carry_out
    waiting: WeakKeyDictionary[Listeners, tuple[Any, ...]] = WeakKeyDictionary()

    def carry_out(self: Listeners, *turn: Any) -> Any:
        before = waiting.pop(self, None)
        waiting[self] = turn
        return () if before is None else real(self, *before)

    return [(Listeners, "carry_out", carry_out)]


def _ignore_stalls() -> list[Patch]:
    """Take the time in which the coordinator stood still for silence of the agents."""
    return [(Coordinator, "_notice_stall", lambda self, planned_ms: None)]


def _forget_the_connection() -> list[Patch]:
    """Number every connection of an agent 1."""
    real = Exchange.begin

    def begin(self: Exchange) -> None:
        real(self)
        self.connection = 1

    return [(Exchange, "begin", begin)]


def _send_reports_twice() -> list[Patch]:
    """After a reconnection, send reports again under new numbers."""
    real = Exchange.report
    numbers: WeakKeyDictionary[Exchange, int] = WeakKeyDictionary()

    def report(self: Exchange, sequence: int, *rest: Any) -> Any:
        numbers[self] = numbers.get(self, 0) + 1
        return real(self, numbers[self], *rest)

    return [(Exchange, "report", report)]


def _forget_reports_of_a_broken_stream() -> list[Patch]:
    """After a reconnection, send only reports that arise after the Hello."""
    real = Exchange.unsent

    def unsent(self: Exchange, first: int, reports: tuple[Any, ...]) -> Any:
        if self._sent == 0 and self.connection > 1:
            self.sent(first + len(reports) - 1)
        return real(self, first, reports)

    return [(Exchange, "unsent", unsent)]


def _answer_without_hearing() -> list[Patch]:
    """Acknowledge heartbeats that the coordinator never hears."""
    return [(Coordinator, "hear", lambda self, beat: True)]


def _drop_the_rest() -> list[Patch]:
    """Forget the inputs for which a turn had no time."""
    return [(Coordinator, "_keep_rest", lambda self, rest, now_ms: True)]


def _close_the_newer_outbox() -> list[Patch]:
    """Let the end of an older stream remove the outbox of the newer one."""

    def close(self: Outboxes, box: Outbox) -> None:
        self._by_session.pop(box.session, None)

    return [(Outboxes, "close", close)]


def _keep_the_broken_stream_secret() -> list[Patch]:
    """Let a stream end without a word to the core."""

    async def note_end(self: AgentService, sender: Any) -> None:
        pass

    return [(AgentService, "_note_end", note_end)]


def _lose_nested_inputs() -> list[Patch]:
    """Forget an input that is posted while another one is stepped."""
    real = Agent.post

    def post(self: Agent, input: Any) -> None:
        if not self._is_stepping:
            real(self, input)

    return [(Agent, "post", post)]


def _forget_the_sweep_of_a_lost_helper() -> list[Patch]:
    """Replace a lost helper, and leave its sweep unanswered."""
    real = Supervisor._replace_host

    def replace_host(self: Supervisor) -> None:
        self.round._sweep_token = 0
        real(self)

    return [(Supervisor, "_replace_host", replace_host)]


def _start_a_stopped_round() -> list[Patch]:
    """Start workers whose round was stopped while their files were made."""
    return [(Round, "_stop_starting", lambda self: None)]


def _leave_everything_to_the_helper() -> list[Patch]:
    """Let nothing end a helper that stands still, so that its workers outlive the fence."""
    return [(HelperWatch, "_kill", lambda self, host, why: None)]


def _wait_for_a_frozen_helper() -> list[Patch]:
    """Wait until a helper answers, however long that takes."""
    return [(HelperWatch, "_note_silence", lambda self, host: None)]


def _act_before_writing() -> list[Patch]:
    """Carry out what a turn has decided while it is being written."""
    real = Coordinator._append
    writing: WeakKeyDictionary[Coordinator, Any] = WeakKeyDictionary()

    async def append(self: Coordinator, records: Any, now_ms: int) -> None:
        before = writing.get(self)
        if before is not None:
            await before
        writing[self] = asyncio.get_running_loop().create_task(real(self, records, now_ms))

    return [(Coordinator, "_append", append)]


def _act_without_writing() -> list[Patch]:
    """Carry on when a batch could not be written."""
    real = Coordinator._append

    async def append(self: Coordinator, records: Any, now_ms: int) -> None:
        with suppress(JournalFailed):
            await real(self, records, now_ms)

    return [(Coordinator, "_append", append)]


def _await_no_one() -> list[Patch]:
    """Give sessions hardly any time to return to a coordinator that starts again."""
    return [(restore, "reattach_ms", lambda timing, spec, sessions: 10)]


def _believe_the_wall_clock() -> list[Patch]:
    """Let a start judge leases and deadlines by the time that has passed by the wall clock."""
    began_ms = (BOOT_UNIX_NS + START_NS) // 1_000_000  # when every seed begins

    def continue_ms(last_ms: int) -> int:
        return max(last_ms + 1, wall_ms() - began_ms)

    return [(beginning, "continue_ms", continue_ms)]


def _let_sweeps_overtake_exits() -> list[Patch]:
    """Let go of a round as soon as it is empty, although exits wait to be reported."""
    real = Round._finish_sweep

    def finish_sweep(self: Round) -> None:
        reporting, self._reporting = self._reporting, 0
        real(self)
        self._reporting = reporting

    return [(Round, "_finish_sweep", finish_sweep)]


def _date_exits_when_seen() -> list[Patch]:
    """Date an exit when the agent gets to handle it."""
    real = ExitReports.report

    async def report(self: ExitReports, worker: Worker, event: Exited) -> None:
        await real(self, worker, event._replace(at_ns=_running_ns()))

    return [(ExitReports, "report", report)]


def _running_ns() -> int:
    loop: Any = asyncio.get_running_loop()
    now_ns: int = loop.now_ns()
    return now_ns


def _forget_exits_in_a_hello() -> list[Patch]:
    """Say in a Hello that the node is clean, although its exits were not heard."""
    real = translate.fill_snapshot

    def fill_snapshot(hello: Any, state: Any, now_ms: int) -> None:
        real(hello, replace(state, unheard=None), now_ms)

    return [(agent_module, "fill_snapshot", fill_snapshot)]


def _date_exits_in_their_turn() -> list[Patch]:
    """Let the ages of exits be true at the coordinator's turn, however long they wait for it."""
    return [(coordinator_module, "_date_exits", lambda input, now_ms: input)]


BUGS: dict[str, Bug] = {
    "forget to wake the writer": (_forget_to_wake_the_writer, frozenset({"StartsTogether"})),
    "forget to wake the link": (_forget_to_wake_the_link, frozenset({"FailuresArePushed"})),
    "act before hearing": (_act_before_hearing, frozenset({"Liveness"})),
    "ignore stalls": (_ignore_stalls, frozenset({"NobodyIsLost"})),
    "forget the connection": (_forget_the_connection, frozenset({"NobodyIsLost"})),
    "send reports twice": (_send_reports_twice, frozenset({"ConnectionsLast"})),
    "forget reports of a broken stream": (
        _forget_reports_of_a_broken_stream,
        frozenset({"ConnectionsLast"}),
    ),
    "answer without hearing": (_answer_without_hearing, frozenset({"NobodyIsLost"})),
    "drop the rest": (_drop_the_rest, frozenset({"ConnectionsLast"})),
    "close the newer outbox": (_close_the_newer_outbox, frozenset({"Liveness"})),
    "keep the broken stream secret": (
        _keep_the_broken_stream_secret,
        frozenset({"LossesArePushed"}),
    ),
    "lose nested inputs": (_lose_nested_inputs, frozenset({"Liveness"})),
    "forget the sweep of a lost helper": (
        _forget_the_sweep_of_a_lost_helper,
        frozenset({"Liveness"}),
    ),
    "start a stopped round": (_start_a_stopped_round, frozenset({"NumbersGrow", "CleanLog"})),
    "leave everything to the helper": (_leave_everything_to_the_helper, frozenset({"FenceHolds"})),
    "wait for a frozen helper": (_wait_for_a_frozen_helper, frozenset({"Liveness"})),
    "let sweeps overtake exits": (_let_sweeps_overtake_exits, frozenset({"TrueCulprit"})),
    "date exits when seen": (_date_exits_when_seen, frozenset({"TrueCulprit"})),
    "forget exits in a hello": (_forget_exits_in_a_hello, frozenset({"TrueCulprit"})),
    "date exits in their turn": (_date_exits_in_their_turn, frozenset({"TrueCulprit"})),
    "act before writing": (_act_before_writing, frozenset({"Liveness"})),
    "act without writing": (_act_without_writing, frozenset({"Liveness"})),
    "await no one": (_await_no_one, frozenset({"NobodyIsLost"})),
    "believe the wall clock": (_believe_the_wall_clock, frozenset({"WaitsStand"})),
}

DURABLE = frozenset(
    {
        "act before writing",
        "act without writing",
        "await no one",
        "believe the wall clock",
        "forget exits in a hello",
        "date exits in their turn",
    }
)
"""Bugs of durable coordinators; the others are planted where the coordinator has no memory."""
OF_CULPRITS = frozenset(
    {
        "let sweeps overtake exits",
        "date exits when seen",
        "forget exits in a hello",
        "date exits in their turn",
    }
)
"""Bugs that cost the verdict its truth: they are planted where only that can go wrong."""
