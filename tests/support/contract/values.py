"""Random values of both cores, for hypothesis: what an agent may report or a coordinator wish."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace

from rallypoint.agent.core import desired, reports
from rallypoint.agent.core.held_round import (
    ErrorRecord,
    HeldRound,
    LocalExit,
    LocalWorker,
    Milestone,
    Stage,
)
from rallypoint.agent.core.state import AgentState, Drain, Ending
from rallypoint.server.core.model.desired import (
    Desired,
    DesiredFinished,
    DesiredReleased,
    DesiredRun,
    DesiredStandby,
    DesiredStop,
)
from rallypoint.server.core.model.desired import Drain as DrainThere
from rallypoint.server.core.model.ids import NodeName
from rallypoint.server.core.model.phase import Outcome
from rallypoint.server.core.model.round import Assignment, Notice, RoundHeader, RoundReason
from rallypoint.server.core.model.spec import HangAction, JobSpec
from rallypoint.server.core.model.verdict import Consequence, Verdict, VerdictCause

NOW_MS = 10_000_000
WORKERS_MAX = 4
ROUND_MAX = 2**52
NAMES = ("n0", "node-7", "gpu_a", "é1")
ADDRESSES = ("10.0.0.1", "host-1.example", "fe80::1")

tokens = st.sampled_from(("", "1.2.am9i.0f", "9" * 512))
"""Tokens of workers."""
words = st.one_of(
    st.sampled_from(("", "boom", "two\nlines\tand a tab", "\x1b[31mred\x1b[0m", "x" * 5_000)),
    st.text(max_size=30),
)
"""Texts that a worker or a system may produce, also with control characters."""
lines = st.text(st.characters(exclude_categories=("C", "Z")), max_size=30)
"""Printable text of one line."""
pids = st.integers(1, 4_194_304)
rounds = st.integers(1, ROUND_MAX)
times = st.integers(0, NOW_MS + 5_000)
"""Times of the agent's clock; a little of it lies ahead."""
spans = st.integers(0, 10**9)


@st.composite
def exits(draw: st.DrawFn) -> LocalExit:
    """Return how a worker ended; the code or the signal may be one that no system has."""
    is_signalled = draw(st.booleans())
    code = None if is_signalled else draw(st.integers(-3, 300))
    error = st.builds(
        ErrorRecord, words, st.one_of(words, st.just("t" * 20_000)), st.none() | spans
    )
    return LocalExit(
        exit_code=code,
        signal=draw(st.integers(0, 200)) if is_signalled else None,
        at_ms=draw(times),
        signalled_first=draw(st.booleans()),
        error=draw(st.none() | error),
        stderr_tail=draw(words),
        signalled_before_ms=draw(st.none() | spans),
        oom_killed=draw(st.booleans()),
        failed_ms=draw(st.none() | st.integers(0, 2**41)),
        error_file=draw(words),
        stderr_file=draw(words),
    )


def workers(local_rank: int) -> st.SearchStrategy[LocalWorker]:
    """Return a worker that may not have started, may run, or may have ended."""
    waits = st.just(LocalWorker(local_rank))
    reached = st.dictionaries(st.sampled_from(Milestone), times).map(lambda all: tuple(all.items()))
    runs = st.builds(LocalWorker, st.just(local_rank), pids, times, milestones=reached)
    ended = st.builds(LocalWorker, st.just(local_rank), pids, times, exits())
    failed = st.builds(LocalWorker, st.just(local_rank), st.just(0), st.just(0), exits())
    return st.one_of(waits, runs, ended, failed)


@st.composite
def failed_workers(draw: st.DrawFn) -> LocalWorker:
    """Return a worker that has recorded an error and still runs."""
    exit = replace(draw(exits()), exit_code=None, signal=None)
    error = exit.error or ErrorRecord("boom", "", 5)
    worker = LocalWorker(draw(st.integers(0, WORKERS_MAX - 1)), draw(pids), draw(times))
    return worker.failed(replace(exit, error=error))


def reported() -> st.SearchStrategy[reports.Report]:
    """Return any report of a node with WORKERS_MAX workers."""
    number = rounds
    ended = st.integers(0, WORKERS_MAX - 1).flatmap(
        lambda rank: st.builds(LocalWorker, st.just(rank), st.just(0) | pids, times, exits())
    )
    all_pids = st.lists(pids, min_size=WORKERS_MAX, max_size=WORKERS_MAX).map(tuple)
    return st.one_of(
        st.builds(reports.ReadyReport, st.integers(0, ROUND_MAX), st.integers(1, 65_535)),
        st.builds(reports.StartedReport, number, all_pids),
        st.builds(reports.ReachedReport, number, st.sampled_from(Milestone), times),
        st.builds(reports.ProgressReport, number, st.none() | times),
        st.builds(reports.StartFailedReport, number, words, st.booleans()),
        st.builds(reports.LeavingReport, number, words),
        st.builds(reports.ExitedReport, number, ended),
        st.builds(reports.RecordedReport, number, failed_workers()),
        st.builds(reports.SucceededReport, number),
        st.builds(reports.BlockedReport, number, st.lists(pids, max_size=100).map(tuple)),
        st.builds(reports.DrainingReport, times, words),
        st.builds(reports.GoodbyeReport, st.sampled_from(reports.GoodbyeKind), words),
    )


@st.composite
def places(draw: st.DrawFn, workers: int) -> tuple[int, int, int, int]:
    """Return group rank, first rank, nodes and workers of a round with room for a node."""
    nodes = draw(st.integers(1, 16))
    world = draw(st.integers(max(nodes, workers), 100))
    return draw(st.integers(0, nodes - 1)), draw(st.integers(0, world - workers)), nodes, world


@st.composite
def held_rounds(draw: st.DrawFn) -> HeldRound:
    """Return the round that a node holds."""
    count = draw(st.integers(1, WORKERS_MAX))
    group_rank, first_rank, nodes, world = draw(places(count))
    header = desired.RoundHeader(
        number=draw(rounds),
        run=draw(rounds),
        world_size=world,
        group_world_size=nodes,
        master_addr=draw(st.sampled_from(ADDRESSES)),
        master_port=draw(st.integers(1, 65_535)),
        restart_count=draw(st.integers(0, 2**31 - 1)),
        reason=draw(st.sampled_from((0, 1, 2, 3, 4, 5, 6, 9, 77))),
        epoch=draw(st.integers(0, 2**41)),
    )
    assignment = desired.Assignment(
        group_rank, first_rank, count, draw(lines), draw(st.integers(0, 100)), 200
    )
    return HeldRound(
        order=desired.RunOrder(header, assignment, draw(st.integers(0, 2**31 - 1)), draw(tokens)),
        workers=tuple(draw(workers(rank)) for rank in range(count)),
        stage=draw(st.sampled_from(Stage)),
        start_failure=draw(st.none() | words),
        still_since_ms=draw(st.none() | times),
    )


@st.composite
def agent_states(draw: st.DrawFn) -> AgentState:
    """Return the state of an agent that says Hello."""
    held = draw(st.none() | held_rounds())
    ending = Ending(0, reports.GoodbyeKind.DRAINED, "")
    drain = st.builds(Drain, times, words, st.just(ending))
    return AgentState(
        workers=1 if held is None else len(held.workers),
        shutdown_timeout_ms=1_000,
        coordinator_timeout_ms=1_000,
        away_since_ms=0,
        held=held,
        last_round=draw(st.integers(0, ROUND_MAX)),
        port=draw(st.integers(1, 65_535)) if held is None else 0,
        revision=draw(st.integers(0, ROUND_MAX)),
        epoch=draw(st.integers(0, 2**41)),
        acknowledged=draw(st.integers(0, ROUND_MAX)),
        drain=draw(st.none() | drain),
    )


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Return a specification that the contract allows."""
    least = draw(st.integers(1, 16))
    ms = st.integers(0, 30 * 86_400_000)
    count = st.integers(0, 2**31 - 1)
    shutdown_ms = draw(st.integers(0, 3_600_000))
    codes = draw(st.lists(st.integers(1, 255), max_size=4, unique=True))
    split = draw(st.integers(0, len(codes)))
    interval_ms = draw(st.just(0) | st.integers(100, 300_000))
    return JobSpec(
        min_nodes=least,
        max_nodes=draw(st.integers(max(16, least), 64)),
        max_restarts=draw(count),
        join_timeout_ms=draw(ms),
        last_call_ms=draw(ms),
        settle_time_ms=draw(ms),
        grow_after_ms=draw(ms),
        grow=draw(st.booleans()),
        shutdown_timeout_ms=shutdown_ms,
        restart_backoff_ms=draw(ms),
        fence_after_ms=draw(st.just(0) | st.just(shutdown_ms + 1_000_000)),
        no_retry_exit_codes=tuple(sorted(codes[:split])),
        no_requeue_exit_codes=tuple(sorted(codes[split:])),
        quarantine_after=draw(st.integers(0, 1_000)),
        quarantine_window_ms=draw(ms),
        quarantine_cooldown_ms=draw(ms),
        max_reformations=draw(count),
        crash_loop=draw(count),
        progress_after_ms=draw(ms),
        heartbeat_interval_ms=interval_ms,
        lease_ms=draw(st.just(0) | st.integers(1_500, 3_600_000)),
        hang_after_ms=draw(ms),
        hang_first_after_ms=draw(ms),
        hang_action=draw(st.sampled_from(HangAction)),
    )


drains = st.none() | st.builds(DrainThere, spans, lines)


@st.composite
def wishes(draw: st.DrawFn) -> Desired:
    """Return a desired state."""
    count = draw(st.integers(1, WORKERS_MAX))
    group_rank, first_rank, nodes, world = draw(places(count))
    header = RoundHeader(
        draw(rounds),
        draw(rounds),
        world,
        nodes,
        draw(st.sampled_from(ADDRESSES)),
        draw(st.integers(1, 65_535)),
        draw(st.integers(0, 2**31 - 1)),
        draw(st.sampled_from(RoundReason)),
        draw(st.integers(0, 2**53 - 1)),
    )
    place = Assignment(group_rank, first_rank, count, draw(lines), draw(st.integers(0, 9)), 20)
    verdict = st.builds(
        Verdict,
        st.sampled_from(VerdictCause),
        rounds,
        st.none() | st.sampled_from(NAMES).map(NodeName),
        lines,
        consequence=st.sampled_from(Consequence),
    )
    return draw(
        st.one_of(
            st.just(
                DesiredRun(
                    header,
                    place,
                    draw(st.integers(0, 2**31 - 1)),
                    draw(drains),
                    draw(tokens),
                    tuple(draw(st.lists(st.sampled_from(ADDRESSES), max_size=3))),
                )
            ),
            st.builds(DesiredStop, rounds, st.sampled_from(RoundReason), spans, lines, drains),
            st.builds(DesiredStandby, st.booleans()),
            st.builds(DesiredReleased, lines),
            st.builds(
                DesiredFinished,
                st.sampled_from(Outcome),
                st.none() | verdict,
                st.integers(0, 2**31 - 1),
                rounds,
            ),
        )
    )


def notices() -> st.SearchStrategy[tuple[tuple[Notice, int], ...]]:
    """Return notices, each with the time left."""
    name = st.none() | st.sampled_from(NAMES).map(NodeName)
    one = st.tuples(st.builds(Notice, name, spans, lines), spans)
    return st.lists(one, max_size=4).map(tuple)
