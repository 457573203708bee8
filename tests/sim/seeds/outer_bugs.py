"""Planted bugs outside the cores: in conversions, views, outboxes, and in what the link says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from rallypoint.agent.core.held_round import LocalWorker
from rallypoint.agent.session import endings, translate
from rallypoint.agent.session.exchange import Exchange
from rallypoint.agent.settings import Settings
from rallypoint.server.agents import desired as views
from rallypoint.server.agents import envelopes, exits, hello
from rallypoint.server.agents import outbox as outboxes
from rallypoint.server.agents.outbox import Outbox
from rallypoint.server.contract.spec import to_spec as real_spec
from rallypoint.server.core.messages.effects import Acknowledge, Effect, Send
from rallypoint.server.core.model.desired import DesiredRun, DesiredStop
from rallypoint.server.core.model.events import Emitted, Event, EventLog
from rallypoint.server.core.model.ids import JobId
from rallypoint.server.core.model.spec import JobSpec
from rallypoint.server.core.model.worker import WorkerExit
from rallypoint.server.core.state.draft import Draft
from rallypoint.server.core.state.state import State
from rallypoint.v1 import agent_service_pb2 as agent_pb2
from rallypoint.v1 import job_pb2, node_pb2
from sim.seeds.planting import Bug, Patch


def _drop_error_records() -> list[Patch]:
    """Drop the error that a worker recorded."""
    real = exits._exit

    def exit(worker: node_pb2.Worker, path: str, allowed: exits.AllowedExits) -> WorkerExit:
        return replace(real(worker, path, allowed), error=None)

    return [(exits, "_exit", exit)]


def _drop_leases() -> list[Patch]:
    """Forget the lease that a job requests."""

    def to_spec(spec: job_pb2.JobSpec, path: str) -> JobSpec:
        return replace(real_spec(spec, path), lease_ms=0)

    return [(hello, "to_spec", to_spec)]


def _swap_ranks() -> list[Patch]:
    """Write the group rank where the first rank belongs, and the other way around."""

    real = views.desired_message

    def swapped(send: Send, worker_token: str = "") -> agent_pb2.DesiredState:
        message = real(send, worker_token)
        place = message.run.assignment
        if message.HasField("run"):
            place.group_rank, place.first_rank = place.first_rank, place.group_rank
        return message

    return [(envelopes, "desired_message", swapped)]


def _drop_no_requeue() -> list[Patch]:
    """Do not tell an agent that its run must not be started again."""
    real = views.desired_message

    def without(send: Send, worker_token: str = "") -> agent_pb2.DesiredState:
        message = real(send, worker_token)
        if message.HasField("finished"):
            message.finished.no_requeue = False
        return message

    return [(envelopes, "desired_message", without)]


def _lose_exits() -> list[Patch]:
    """Leave the exits of workers out of a Hello."""
    real = translate._held_worker

    def held_worker(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
        return real(LocalWorker(worker.local_rank, worker.pid, worker.started_ms), now_ms)

    return [(translate, "_held_worker", held_worker)]


def _lose_ages() -> list[Patch]:
    """Report every exit as if it had happened just now."""
    real = translate.worker_message

    def worker_message(worker: LocalWorker, now_ms: int) -> node_pb2.Worker:
        message = real(worker, now_ms)
        message.exit.ClearField("age")
        return message

    return [(translate, "worker_message", worker_message)]


def _forget_the_launch() -> list[Patch]:
    """Leave the launch out of a Hello."""
    real = Settings.hello

    def of_settings(settings: Settings, **known: Any) -> agent_pb2.Hello:
        message = real(settings, **known)
        message.launch_id = ""
        return message

    return [(Settings, "hello", of_settings)]


def _prefer_the_run() -> list[Patch]:
    """Keep an order to run that was not sent yet when the order to stop follows."""
    real = outboxes._put

    def put(outbox: Outbox, effect: Any) -> None:
        waiting = outbox.desired
        if isinstance(effect, Send) and isinstance(effect.desired, DesiredStop):
            if waiting is not None and isinstance(waiting.desired, DesiredRun):
                return
        real(outbox, effect)

    return [(outboxes, "_put", put)]


def _forget_acknowledgements() -> list[Patch]:
    """Forget every second acknowledgement."""
    real = outboxes._put

    def put(outbox: Outbox, effect: Effect) -> None:
        if not isinstance(effect, Acknowledge) or effect.sequence % 2:
            real(outbox, effect)  # type: ignore[arg-type]  # `carry_out` skips the rest

    return [(outboxes, "_put", put)]


def _forget_connection_numbers() -> list[Patch]:
    """Give every connection the same number."""
    real = Exchange.begin

    def begin(exchange: Exchange) -> None:
        real(exchange)
        exchange.connection = 1

    return [(Exchange, "begin", begin)]


def _drop_unsent_reports() -> list[Patch]:
    """Do not repeat on a new connection what was sent on the one before."""
    real = Exchange.begin

    def begin(exchange: Exchange) -> None:
        sent = exchange._sent
        real(exchange)
        exchange._sent = sent

    return [(Exchange, "begin", begin)]


def _confirm_too_much() -> list[Patch]:
    """Take every message for the answer to all heartbeats."""
    real = Exchange.confirmed

    def confirmed(exchange: Exchange, message: agent_pb2.SessionResponse) -> Iterator[int]:
        message.acknowledgement.heartbeat = exchange._heartbeat
        yield from real(exchange, message)

    return [(Exchange, "confirmed", confirmed)]


def _dismiss_none_for_good() -> list[Patch]:
    """Let an agent try again whatever the refusal."""
    return [(endings, "FINAL", {})]


def _hide_ends() -> list[Patch]:
    """Give a run that ends no revision."""
    real = State.revise

    def revise(state: State, job_id: JobId) -> None:
        job = state.jobs.get(job_id)
        if job is None or job.outcome is None:
            real(state, job_id)

    return [(State, "revise", revise)]


def _log_no_ends() -> list[Patch]:
    """Log no event for the end of a run."""
    real = Draft.log_events

    def log_events(draft: Draft) -> None:
        draft._emitted = [one for one in draft._emitted if one.reason != "run_closed"]
        real(draft)

    return [(Draft, "log_events", log_events)]


def _repeat_sequences() -> list[Patch]:
    """Begin with the number of the latest event instead of the one after it."""
    real = EventLog.number

    def number(
        log: EventLog, emitted: Iterable[Emitted], at_ms: int, epoch: int
    ) -> tuple[Event, ...]:
        events = real(log, emitted, at_ms, epoch)
        return tuple(replace(event, sequence=event.sequence - 1) for event in events)

    return [(EventLog, "number", number)]


OUTER_BUGS: dict[str, Bug] = {
    "drop error records": (_drop_error_records, frozenset({"NewsIsTrue"})),
    "drop leases": (_drop_leases, frozenset({"NewsIsTrue"})),
    "swap two ranks": (_swap_ranks, frozenset({"OrdersAreTrue"})),
    "drop no_requeue": (_drop_no_requeue, frozenset({"ExitsClean"})),
    "lose exits": (_lose_exits, frozenset({"NewsIsTrue"})),
    "lose ages": (_lose_ages, frozenset({"NewsIsTrue"})),
    "forget the launch": (_forget_the_launch, frozenset({"NewsIsTrue"})),
    "prefer the run to the stop": (_prefer_the_run, frozenset({"Liveness"})),
    "forget acknowledgements": (_forget_acknowledgements, frozenset({"Liveness"})),
    "forget connection numbers": (
        _forget_connection_numbers,
        frozenset({"WorkersDoNotNotice"}),
    ),
    "drop unsent reports": (_drop_unsent_reports, frozenset({"Liveness"})),
    "confirm too much": (_confirm_too_much, frozenset({"FenceHolds"})),
    "dismiss no agent for good": (_dismiss_none_for_good, frozenset({"Liveness"})),
    "log no end of a run": (_log_no_ends, frozenset({"EventsAreTheJournal"})),
    "repeat sequences": (
        _repeat_sequences,
        frozenset({"EventsAreTheJournal", "EventsGoOn"}),
    ),
    "hide the end from readers": (_hide_ends, frozenset({"ReadersMissNothing"})),
}
"""By name: how a bug is planted, and the rules that may notice it."""
