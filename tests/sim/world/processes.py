"""Simulated worker processes: they start, work, fail, ignore signals, and die.

`Workers` is the helper process of one agent: it takes requests in order, answers in order, except
that word of an exit may be late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder
from rallypoint.agent.node_workers import SWEEP_LIMIT_MS
from rallypoint.agent.round.exits import TAIL_WAIT_S
from sim.world.clock import Timer
from sim.world.last_words import SIGKILL, LastWords
from sim.world.process import Process
from sim.world.wire import header_of

if TYPE_CHECKING:
    from sim.world.node import Agent
    from sim.world.world import World

SIGUSR1 = 10
LEAVES_MS_MAX = 4_000
"""How long a worker takes to finish when its node drains."""
HELPER_MS_MAX = 5
"""How long a request to the helper takes, and its answer."""
LOOK_MS_MAX = 250
"""How long an agent takes to find the error that a running worker recorded."""
TEARDOWN_MS_MAX = 60_000
"""How long a worker lives after it has recorded its error; the agent stops it sooner."""
SURVIVES_MS_MAX = 3_000
"""How long a worker lives that ends with 0 after it has recorded an error."""
EXIT_MS_MAX = int(TAIL_WAIT_S * 1000)
"""How long the report of an exit waits for the rest of standard error."""
SWEEP_MS_MAX = SWEEP_LIMIT_MS
"""What survives SIGKILL this long is reported as blocked."""
UNBLOCKED_MS_MAX = 12_000
"""Processes that survive SIGKILL are gone after this."""
REPLACED_MS = 100
"""How long a node is without a helper when that has died."""
STRAGGLE_MS_MAX = 400
"""How far apart the workers of a round end."""


class Workers:
    """The helper process of one agent, and the workers below it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.world: World = agent.world
        self.living: list[Process] = []
        self.started: list[Process] = []
        """All that were ever started, oldest first."""
        self.down_until_ms = 0
        """Until then there is no helper."""
        self._helper = self._known_helper = 0
        """How many there were before, in fact and as far as the agent knows: one that stands still
        learns late that it asks a helper that is gone."""
        self._ask_clear_ms = 0
        self._tell_clear_ms = 0
        self._open_sweep = 0
        self._untold = 0
        """Exits of which the agent has no report yet: that takes a moment."""
        self._is_swept = False
        """Nothing is left of what the open sweep kills; `Swept` follows the last report."""
        self._asked_ms: dict[int, int] = {}
        """When the agent first asked to signal the workers of a round, by its number."""
        self._fence: Timer | None = None
        self._fence_at_ms: int | None = None

    # --- requests of the agent ---

    def start(self, order: RunOrder) -> None:
        """Start the workers of a round, in rank order."""
        for local_rank in range(order.assignment.local_world_size):
            if self._has_helper():
                self._ask(partial(self._spawn, order, local_rank))
            else:
                text = "cannot start a worker: no helper"
                self.agent.post(inputs.WorkerNotStarted(order.number, local_rank, text))

    def signal(self, signum: int) -> None:
        """Signal every worker that lives when the helper gets to it."""
        self._note_signal()
        if self._has_helper():
            self._ask(partial(self._signal, signum))

    def sweep(self, token: int) -> None:
        """Kill everything that the workers started."""
        self._open_sweep, self._is_swept = token, False
        self._note_signal()
        if self._has_helper():
            self._ask(partial(self._sweep, token))

    def _note_signal(self) -> None:
        held, now_ms = self.agent.state.held, self.world.clock.now_ms
        if held is not None:
            self._asked_ms.setdefault(held.number, now_ms)
        for process in self.living:
            if process.asked_ms is None:
                process.asked_ms = now_ms

    def arm_fence(self, at_ms: int) -> None:
        """Kill everything at this time, unless a later call moves it."""
        self._fence_at_ms = at_ms
        if self._has_helper():
            self._ask(partial(self._arm_fence, at_ms))

    def _arm_fence(self, at_ms: int) -> None:
        if self._fence is not None:
            self._fence.cancel()
        self._fence = self.world.clock.at(max(at_ms, self.world.clock.now_ms), self._fell)

    def _fell(self) -> None:
        for process in list(self.living):
            process.note_signal(self.world.clock.now_ms)
            self._kill(process)

    def _has_helper(self) -> bool:
        return self.down_until_ms <= self.world.clock.now_ms

    def _ask(self, request: partial[None]) -> None:
        at_ms = self.world.clock.now_ms + self.world.rng.randint(0, HELPER_MS_MAX)
        self._ask_clear_ms = max(self._ask_clear_ms, at_ms)
        self.world.clock.at(self._ask_clear_ms, partial(self._handle, request, self._known_helper))

    def _handle(self, request: partial[None], helper: int) -> None:
        if not self.agent.is_gone and self._has_helper() and helper == self._helper:
            request()

    def _answer(self, input: inputs.Input) -> None:
        self._tell(partial(self.agent.post, input))

    def _tell(self, call: Callable[[], None], late_ms: int = 0) -> None:
        at_ms = self.world.clock.now_ms + self.world.rng.randint(0, HELPER_MS_MAX)
        self._tell_clear_ms = max(self._tell_clear_ms, at_ms)
        taken = partial(self.agent.take, call)
        self.world.clock.at(self._tell_clear_ms + late_ms, taken)

    def _tell_start(self, process: Process) -> None:
        process.started_ms = self.world.clock.now_ms
        number, rank = process.order.number, process.local_rank
        self.agent.post(inputs.WorkerStarted(number, rank, process.pid))

    def _tell_record(self, process: Process, record: LastWords) -> None:
        """Let the agent find the error that a worker has recorded, unless that has ended."""
        if not process.is_alive:
            return
        now_ms, error = self.world.clock.now_ms, record.error
        assert error is not None
        error = replace(error, before_exit_ms=now_ms - process.recorded_ms)
        process.record = dataclasses.replace(record, error=error)
        self.agent.post(
            inputs.WorkerRecorded(
                round=process.order.number,
                local_rank=process.local_rank,
                error=error,
                stderr_tail=record.stderr_tail,
                failed_ms=record.failed_ms,
                error_file=record.error_file,
                stderr_file=record.stderr_file,
            )
        )
        held = self.agent.state.held
        if held is not None and held.order is process.order:
            is_found = held.workers[process.local_rank].recorded is not None
            process.found_ms = now_ms if is_found else None

    def _last_words_of(self, process: Process) -> LastWords:
        """Return what a process has left, with the error that it had recorded before."""
        left, record = process.left, process.record
        if record is None or process.has_survived:
            return left
        assert record.error is not None
        age_ms = process.ended_ms - process.recorded_ms
        return dataclasses.replace(
            left,
            error=replace(record.error, before_exit_ms=age_ms),
            failed_ms=record.failed_ms,
            error_file=record.error_file,
            stderr_file=record.stderr_file,
        )

    def _tell_end(self, process: Process) -> None:
        process.told_ms = self.world.clock.now_ms
        process.left = left = self._last_words_of(process)
        self.agent.post(
            inputs.WorkerEnded(
                round=process.order.number,
                local_rank=process.local_rank,
                exit_code=process.exit_code,
                signal=process.signal,
                error=left.error,
                stderr_tail=left.stderr_tail,
                at_ms=process.ended_ms,
                oom_killed=left.oom_killed,
                failed_ms=left.failed_ms,
                error_file=left.error_file,
                stderr_file=left.stderr_file,
                signalled_ms=process.signalled_ms,
            )
        )
        self._untold -= 1
        self._tell_swept()

    # --- what the helper does ---

    def _spawn(self, order: RunOrder, local_rank: int) -> None:
        world, faults = self.world, self.world.faults
        if world.happens(faults.cannot_start_percent):
            is_missing = bool(local_rank % 2)  # not drawn: the other draws stay the same
            text = "no such file" if is_missing else "no memory"
            refused = inputs.WorkerNotStarted(order.number, local_rank, text, is_missing)
            self._answer(refused)
            return
        group = world.group(self.agent.host.plan.job_id, header_of(order))
        process = Process(world.next_pid(), self.agent.host, self.agent, order, local_rank, group)
        process.asked_ms = self._asked_ms.get(order.number)
        world.note("spawn", process.host.name, order.number, process.rank, process.pid)
        world.safety.spawned(process)
        self.living.append(process)
        self.agent.host.processes.append(process)
        group.processes.append(process)
        self.started.append(process)
        world.processes[process.pid] = process
        self._tell(partial(self._tell_start, process))
        if group.is_doomed:
            world.clock.after(world.rng.randint(0, 900), partial(self._fail, process, 1, None))
        elif world.happens(faults.worker_fails_percent):
            code, signum = world.rng.choice(((1, None), (17, None), (None, 11), (None, SIGKILL)))
            failed = partial(self._fail, process, code, signum)
            world.clock.after(world.rng.randint(0, 6_000), failed)
        world.join(group)

    def _fail(self, process: Process, code: int | None, signum: int | None) -> None:
        world = self.world
        if not process.is_alive or world.is_calm:
            return
        world.disturb_host(process.host)
        if code == 1 and world.rng.random() < 0.5:
            process.recorded_ms = world.clock.now_ms
            late_ms = world.rng.randint(0, LOOK_MS_MAX)
            self._tell(partial(self._tell_record, process, world.draw_record()), late_ms)
            lives_ms = world.rng.randint(0, TEARDOWN_MS_MAX)
            is_survivor = lives_ms % 100 < world.faults.survives_percent
            if is_survivor and not process.group.is_doomed:
                code, lives_ms = 0, lives_ms % SURVIVES_MS_MAX
            world.clock.after(lives_ms, partial(self.end, process, code, signum))
        else:
            self.end(process, code, signum)

    def _signal(self, signum: int) -> None:
        world, faults = self.world, self.world.faults
        for process in list(self.living):
            world.safety.signalled(process)
            process.note_signal(world.clock.now_ms)
            process.signalled = True
            if signum == SIGUSR1:  # the node drains: some finish soon, some never
                if world.rng.random() < 0.7:
                    done = partial(self.end, process, 0, None)
                    world.clock.after(world.rng.randint(0, LEAVES_MS_MAX), done)
                continue
            if world.happens(faults.ignores_term_percent):
                continue
            code, died = (0, None) if world.happens(faults.graceful_percent) else (None, signum)
            end = partial(self.end, process, code, died)
            world.clock.after(world.rng.randint(0, 60), end)

    def _sweep(self, token: int) -> None:
        world = self.world
        for process in list(self.living):
            world.safety.signalled(process)
            process.note_signal(world.clock.now_ms)
            process.signalled = True
            self._kill(process)
        if not self.living:
            self._swept(token)
            return
        for process in self.living:
            gone = partial(self.end, process, None, SIGKILL)
            world.clock.after(world.rng.randint(100, UNBLOCKED_MS_MAX), gone)
        world.clock.after(SWEEP_MS_MAX, partial(self._tell_blocked, token))
        self._await_clean(token)

    def _kill(self, process: Process) -> None:
        """SIGKILL, which almost nothing survives."""
        process.is_blocked = process.is_blocked or self.world.happens(
            self.world.faults.blocked_percent
        )
        if not process.is_blocked:
            self.end(process, None, SIGKILL)

    def _await_clean(self, token: int) -> None:
        if self.agent.is_gone or not self._has_helper():
            return
        if self.living:
            self.world.clock.after(50, partial(self._await_clean, token))
        else:
            self._swept(token)

    def _swept(self, token: int) -> None:
        if self._open_sweep == token:
            self._tell(self._note_clean)

    def _note_clean(self) -> None:
        self._is_swept = bool(self._open_sweep)
        self._tell_swept()

    def _tell_swept(self) -> None:
        if self._is_swept and not self._untold:
            token, self._open_sweep, self._is_swept = self._open_sweep, 0, False
            self.agent.post(inputs.Swept(token))

    def _tell_blocked(self, token: int) -> None:
        if self.living and self._open_sweep == token and not self.agent.is_gone:
            pids = tuple(process.pid for process in self.living)
            self._answer(inputs.SweepBlocked(token, pids))

    # --- how processes end ---

    def end(
        self, process: Process, exit_code: int | None, signum: int | None, words: str = ""
    ) -> None:
        """End a process that still lives; its agent and its peers notice."""
        if not process.is_alive:
            return
        process.is_alive = False
        process.exit_code, process.signal = exit_code, signum
        process.ended_ms = self.world.clock.now_ms
        if exit_code != 0 and not (signum == SIGKILL and process.signalled):
            process.left = self.world.draw_last_words(signum, words)
        self.living.remove(process)
        process.host.processes.remove(process)
        world = self.world
        world.note("exit", process.host.name, process.pid, exit_code, signum, process.left)
        if not self.agent.is_gone:
            self._untold += 1
            self._tell(partial(self._tell_end, process), world.rng.randint(0, EXIT_MS_MAX))
        if exit_code != 0 or process.signalled:
            world.break_group(process)

    def kill_all(self) -> None:
        """Kill everything at once, as when the agent or its helper dies."""
        for process in list(self.living):
            self.end(process, None, SIGKILL)

    def lose_helper(self) -> None:
        """Let the helper die with its workers; a new one starts."""
        if not self._has_helper():
            return
        self.down_until_ms = self.world.clock.now_ms + REPLACED_MS
        self._helper += 1
        for process in self.living:
            if process.asked_ms is not None:  # as much as is known without its helper
                process.note_signal(process.asked_ms)
        self.kill_all()
        replaced = partial(self._replaced, self._helper)
        self.world.clock.at(self.down_until_ms, partial(self.agent.take, replaced))

    def _replaced(self, helper: int) -> None:
        self._known_helper = helper
        if self._fence_at_ms is not None:
            self.arm_fence(self._fence_at_ms)
        self._note_clean()
