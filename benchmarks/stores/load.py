"""Load processes: clients that call a store as fast as it answers, or at a fixed rate.

The clients of one measurement are spread over all processes. They connect and make a first call
each; then all begin at the same moment. CLOCK_MONOTONIC is the same in all processes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Self

from stores.clients import KEYS, Client, Kind, Op, Target, TcpStoreClient, open_client

LEAD_S = 0.05
"""From the order to begin until all begin."""
ANSWER_S_MAX = 120.0
"""Longest wait for a load process."""


@dataclass(frozen=True, slots=True)
class Load:
    """What some clients do."""

    target: Target
    op: Op
    clients: int
    seconds: float
    first_client: int = 0
    """Their numbers begin here."""
    rate: float | None = None
    """Calls a second of each client; None: the next call as soon as one is answered."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one load, or its part in one process, came to."""

    calls: int
    rate: float
    """Calls a second of all clients."""
    times_ms: array[float]
    """How long each call took, in no order; empty when calls are not answered."""


class Crew:
    """The load processes."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._lines: list[Connection[Any, Any]] = []
        self._processes = []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            process.join(10)
            process.kill()

    def run(self, *loads: Load, at_begin: Callable[[], None] = lambda: None) -> tuple[Outcome, ...]:
        """Let the clients of all loads work side by side.

        Args:
            loads: what they do; their numbers of clients are split over the processes.
            at_begin: called when all are connected, just before they begin.

        Returns: the outcome of each load, in order.
        """
        busy: list[Connection[Any, Any]] = []
        for place, line in enumerate(self._lines):
            parts = [_part(load, place, len(self._lines)) for load in loads]
            if any(part.clients for part in parts):
                line.send(parts)
                busy.append(line)
        for line in busy:
            _receive(line)
        at_begin()
        begin_s = time.monotonic() + LEAD_S
        for line in busy:
            line.send(begin_s)
        found = [_receive(line) for line in busy]
        return tuple(_join([parts[place] for parts in found]) for place in range(len(loads)))

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [process.pid or 0 for process in self._processes]


def _part(load: Load, place: int, places: int) -> Load:
    """Return the share of one process."""
    first = load.clients * place // places
    end = load.clients * (place + 1) // places
    return replace(load, clients=end - first, first_client=load.first_client + first)


def _receive(line: Connection[Any, Any]) -> Any:
    if not line.poll(ANSWER_S_MAX):
        raise TimeoutError("a load process does not answer")
    found = line.recv()
    if isinstance(found, str):
        raise RuntimeError(f"a load process failed: {found}")
    return found


def _join(parts: Sequence[Outcome]) -> Outcome:
    times_ms: array[float] = array("d")
    for part in parts:
        times_ms.extend(part.times_ms)
    return Outcome(sum(part.calls for part in parts), sum(part.rate for part in parts), times_ms)


# --- In a load process ----------------------------------------------------------------------------


def serve(line: Connection[Any, Any]) -> None:
    """Work until the other end of the line is closed."""
    while True:
        try:
            loads: list[Load] = line.recv()
        except EOFError:
            return
        try:
            blocks = any(load.target.kind is Kind.TCPSTORE for load in loads)
            outcomes = _run_blocking(loads, line) if blocks else asyncio.run(_run(loads, line))
        except Exception as error:  # noqa: BLE001  # the root of this process; the parent gets it
            line.send(f"{type(error).__name__}: {error}")
        else:
            line.send(outcomes)


class _Tally:
    """What one client has done."""

    def __init__(self, load: Load, place: int) -> None:
        self.load = load
        self.times_ms: array[float] = array("d")
        self.calls = 0
        self.seconds = load.seconds
        self._phase = place / max(1, load.clients)

    def due_s(self) -> float:
        """Return when the next call is due, from the begin."""
        rate = self.load.rate
        return 0.0 if rate is None else (self.calls + self._phase) / rate

    def count(self, took_s: float) -> None:
        self.calls += 1
        if self.load.target.answers(self.load.op):
            self.times_ms.append(took_s * 1000)


async def _run(loads: list[Load], line: Connection[Any, Any]) -> list[Outcome]:
    clients = [
        [open_client(load.target, load.first_client + place) for place in range(load.clients)]
        for load in loads
    ]
    tallies = [[_Tally(load, place) for place in range(load.clients)] for load in loads]
    pairs = [
        pair
        for group, counted in zip(clients, tallies, strict=True)
        for pair in zip(group, counted, strict=True)
    ]
    async with asyncio.TaskGroup() as tasks:
        for client, tally in pairs:
            tasks.create_task(_prepare(client, tally.load.op))
    line.send(None)
    begin_s = await asyncio.to_thread(line.recv)
    await asyncio.sleep(max(0.0, begin_s - time.monotonic()))
    async with asyncio.TaskGroup() as tasks:
        for client, tally in pairs:
            tasks.create_task(_work(client, tally, begin_s))
    await asyncio.gather(*(client.close() for client, _ in pairs))
    return [_outcome(group) for group in tallies]


async def _prepare(client: Client, op: Op) -> None:
    """Connect; where the client reads, write its keys before."""
    if op is Op.GET:
        for number in range(KEYS):
            await client.call(Op.PUT, number)
    await client.call(op, 0)


async def _work(client: Client, tally: _Tally, begin_s: float) -> None:
    op, seconds = tally.load.op, tally.load.seconds
    while (due_s := tally.due_s()) < seconds:
        wait_s = begin_s + due_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        started_s = time.monotonic()
        if started_s - begin_s >= seconds:
            tally.seconds = started_s - begin_s
            break
        await client.call(op, tally.calls)
        tally.count(time.monotonic() - started_s)


def _run_blocking(loads: list[Load], line: Connection[Any, Any]) -> list[Outcome]:
    pairs = [
        (_store_client(load.target, load.first_client + place), _Tally(load, place))
        for load in loads
        for place in range(load.clients)
    ]
    for client, tally in pairs:
        client.call(Op.ADD, 0)
        for number in range(KEYS):
            client.call(Op.PUT, number)
        client.call(tally.load.op, 0)
        client.flush()
    line.send(None)
    begin_s = line.recv()
    errors: list[Exception] = []
    threads = [
        threading.Thread(target=_work_blocking, args=(client, tally, begin_s, errors))
        for client, tally in pairs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [_outcome([tally for _, tally in pairs if tally.load is load]) for load in loads]


@cache
def _store_client(target: Target, client: int) -> TcpStoreClient:
    """Return the client of this number: to connect takes more than half a second."""
    return TcpStoreClient(target, client)


def _work_blocking(
    client: TcpStoreClient, tally: _Tally, begin_s: float, errors: list[Exception]
) -> None:
    op, end_s = tally.load.op, begin_s + tally.load.seconds
    time.sleep(max(0.0, begin_s - time.monotonic()))
    try:
        while (started_s := time.monotonic()) < end_s:
            client.call(op, tally.calls)
            tally.count(time.monotonic() - started_s)
        client.flush()
    except Exception as error:  # noqa: BLE001  # the root of this thread
        errors.append(error)
    tally.seconds = time.monotonic() - begin_s


def _outcome(tallies: Sequence[_Tally]) -> Outcome:
    return _join(
        [Outcome(tally.calls, tally.calls / tally.seconds, tally.times_ms) for tally in tallies]
    )
