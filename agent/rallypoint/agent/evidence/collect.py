"""Collects what the workers of one node do, all at once and within a limit.

Nothing here relies on a worker: it may stand still, hold the lock of its interpreter, or answer
with anything. What is missing becomes a line of `gaps`. Files are read in threads, because their
file system may stand still; those of the agent's own folder in another one than the logs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial

from rallypoint.agent.evidence.dump import SIGNUM, StackDump
from rallypoint.agent.evidence.processes import ProcessFacts, has_socket, read_process
from rallypoint.agent.evidence.recorder import awaits_peer, parse_recording
from rallypoint.agent.evidence.server import GENERIC, NCCL, NoHandler, ask
from rallypoint.agent.evidence.stacks import parse_stacks
from rallypoint.agent.evidence.target import Target
from rallypoint.base.file_thread import FileThread
from rallypoint.v1 import evidence_pb2

LIMIT_S = 2.0
"""How long the collection may take."""
RANK_BYTES_MAX = 64 * 1024
"""Of one rank's evidence as a message."""
STACKS_SHARE = 0.6
"""Part of the limit that stacks may take; a busy machine needs a turn of each worker."""
STUCK_S = 0.1
"""How long a worker in uninterruptible sleep is waited for: usually it reads a disk."""
_DOING, _READING = "reading stacks", "reading what torch has recorded"
LOOK_S = 0.005
"""Between two looks whether the stacks are there."""
GAP_CHARS_MAX = 256
STILL = {
    evidence_pb2.PROCESS_STATE_STOPPED: "a signal has stopped it",
    evidence_pb2.PROCESS_STATE_TRACED: "a debugger holds it",
    evidence_pb2.PROCESS_STATE_ENDED: "it has ended",
}
"""States in which no signal is handled."""

Signal = Callable[[int, Collection[int]], None]
"""Sends a signal to the processes of some workers, by worker id, and to no other process."""


class _Taking:
    """What is known about one worker so far."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.facts = ProcessFacts(evidence_pb2.PROCESS_STATE_UNSPECIFIED)
        self.dump = StackDump(target)
        self.is_awaited = self.is_done = False
        self.threads: list[evidence_pb2.ThreadStack] = []
        self.groups: list[evidence_pb2.GroupProgress] = []
        self.awaits_peer = False
        self.tail: str | None = None
        self.stacks_gap = "no stacks: its files do not answer"
        self.groups_gap = "no collectives: torch's worker server does not answer"
        if not target.prefix:
            self.stacks_gap = "no stacks: the worker is not armed"
            self.groups_gap = "no collectives: the worker is not armed"

    # --- in a thread ---

    def begin(self) -> None:
        """Read what the kernel says, and get ready for the stacks."""
        self.facts = read_process(self.target.pid)
        if not self.target.prefix:
            return
        hindrance = STILL.get(self.facts.state) or self.dump.begin()
        self.stacks_gap = f"no stacks: {hindrance}" if hindrance else ""
        self.is_awaited = not hindrance

    def look(self) -> None:
        """See whether the stacks are there, or cannot come any more."""
        self.is_done = self.dump.look()
        if not self.is_done:
            facts = read_process(self.target.pid)
            if facts.state in STILL:
                self.facts, self.is_done = facts, True

    def finish(self) -> None:
        """Read the stacks."""
        self.threads = parse_stacks(self.dump.finish())
        why = STILL.get(self.facts.state, "it has not written them in time")
        if not self.threads:
            self.stacks_gap = f"no stacks: {why}"
        elif not self.is_done:
            self.stacks_gap = f"stacks may be incomplete: {why}"
        elif not self.threads[0].is_main:
            self.stacks_gap = "no stack of the main thread: there are too many threads"

    def read_tail(self) -> None:
        self.tail = self.target.output.tail()

    @property
    def is_stuck(self) -> bool:
        """Whether it is in uninterruptible sleep."""
        return self.facts.state == evidence_pb2.PROCESS_STATE_UNINTERRUPTIBLE

    # --- in the event loop ---

    async def take_groups(self, files: FileThread) -> None:
        """Ask torch's server."""
        if not self.target.prefix:
            return
        try:
            socket = self.target.socket
            if not await files.run(_READING, partial(has_socket, self.target.pid, socket)):
                # A server whose socket the program has closed ends the process when it is asked.
                await files.run(_READING, partial(os.stat, socket))
                self.groups_gap = "no collectives: it has closed the socket of torch's server"
                return
            self.groups = await self._ask(GENERIC, files)
            self.groups_gap = ""
            nccl = await self._ask(NCCL, files)
        except NoHandler:
            return
        except FileNotFoundError:
            self.groups_gap = "no collectives: torch.distributed is not loaded, or has no server"
        except (OSError, ValueError) as error:
            self.groups_gap = f"no collectives: torch's worker server: {error}"
        else:
            names = {group.name for group in nccl}
            self.groups = [*nccl, *(one for one in self.groups if one.name not in names)]

    async def _ask(self, handler: str, files: FileThread) -> list[evidence_pb2.GroupProgress]:
        data = await ask(self.target.socket, handler)
        # In the thread: the recorder of a broken worker may be large, and heartbeats must not wait.
        awaits = await files.run(_READING, partial(awaits_peer, data))
        self.awaits_peer = self.awaits_peer or awaits
        return await files.run(_READING, partial(parse_recording, data, self.target.world_size))

    def evidence(self) -> evidence_pb2.RankEvidence:
        """Return what is known by now, within the limit of its size."""
        one = evidence_pb2.RankEvidence(
            rank=self.target.rank,
            pid=self.target.pid,
            state=self.facts.state,
            waits_in=self.facts.waits_in[:64],
            threads=self.threads,
            groups=self.groups,
            stderr_tail=self.tail or "",
            awaits_peer=self.awaits_peer,
        )
        one.cpu_time.FromMilliseconds(self.facts.cpu_ms)
        one.gaps.extend(gap[:GAP_CHARS_MAX] for gap in (self.stacks_gap, self.groups_gap) if gap)
        if self.tail is None:
            one.gaps.append("no output: its file does not answer")
        return bound(one)


def bound(one: evidence_pb2.RankEvidence) -> evidence_pb2.RankEvidence:
    """Return evidence of at most RANK_BYTES_MAX: what matters least is left out first."""
    is_cut = False
    while one.ByteSize() > RANK_BYTES_MAX:
        if not is_cut:
            one.gaps.append(f"not all: it has over {RANK_BYTES_MAX >> 10} KiB")
            is_cut = True
        elif len(one.threads) > 1:
            del one.threads[-1]
        elif one.stderr_tail:
            one.stderr_tail = ""
        elif len(one.groups) > 1:
            del one.groups[-1]
        else:
            del one.threads[0].frames[-1]
    return one


async def collect(
    targets: Sequence[Target],
    *,
    signal: Signal,
    own_files: FileThread,
    logs: FileThread,
    limit_s: float = LIMIT_S,
) -> list[evidence_pb2.RankEvidence]:
    """Return what each of these workers does, in the same order, within the limit.

    Args:
        targets: live workers.
        signal: sends a signal to some of them.
        own_files: the thread for files of the agent's own folder.
        logs: the thread for files of the workers' output.
        limit_s: how long it may take.
    """
    takings = [_Taking(target) for target in targets]
    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(_take_stacks(takings, signal, own_files, limit_s * STACKS_SHARE))
            tasks.create_task(_take_tails(takings, logs))
            for taking in takings:
                tasks.create_task(taking.take_groups(own_files))
    except TimeoutError:
        pass  # each part has noted what is missing
    finally:
        _let_close(takings, own_files)
    return [taking.evidence() for taking in takings]


async def _take_stacks(
    takings: Sequence[_Taking], signal: Signal, files: FileThread, limit_s: float
) -> None:
    try:
        await files.run(_DOING, partial(_call_all, takings, _Taking.begin))
        awaited = [taking for taking in takings if taking.is_awaited]
        if awaited:
            signal(SIGNUM, [taking.target.worker_id for taking in awaited])
            await _await_stacks(awaited, files, limit_s)
            await files.run(_DOING, partial(_call_all, awaited, _Taking.finish))
    except OSError as error:  # too many calls wait, or the disk fails
        for taking in takings:
            taking.stacks_gap = taking.stacks_gap or f"no stacks: {error}"


async def _await_stacks(awaited: Sequence[_Taking], files: FileThread, limit_s: float) -> None:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while (waited_s := loop.time() - began_s) < limit_s:
        open_ = [taking for taking in awaited if not taking.is_done]
        if all(taking.is_stuck for taking in open_) and (not open_ or waited_s > STUCK_S):
            break
        await asyncio.sleep(LOOK_S)
        await files.run(_DOING, partial(_call_all, open_, _Taking.look))


def _call_all(takings: Sequence[_Taking], call: Callable[[_Taking], None]) -> None:
    for taking in takings:
        call(taking)


async def _take_tails(takings: Sequence[_Taking], logs: FileThread) -> None:
    in_files = [taking for taking in takings if taking.target.output.is_file]
    for taking in takings:
        if not taking.target.output.is_file:
            taking.read_tail()

    def read() -> None:
        for taking in in_files:
            taking.read_tail()

    if in_files:
        try:
            await logs.run("reading standard error", read)
        except OSError:  # too many calls wait
            pass


def _let_close(takings: Sequence[_Taking], files: FileThread) -> None:
    def close() -> None:
        for taking in takings:
            taking.dump.close()

    try:
        files.submit(close)
    except OSError:  # the thread stands still; so do the files
        pass
