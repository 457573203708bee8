"""Makes one standby: probes the interpreter, starts it, and lets it import.

An interpreter that does not run our hook would run the user's script at once. So a probe comes
first: the same interpreter with a program that only ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import Struct, field

from rallypoint.agent.helper.events import SpawnRequest
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.output.kinds import Kind, Kinds
from rallypoint.agent.warm.command import (
    Shape,
    Warmth,
    importable,
    probe_command,
    standby_environment,
)
from rallypoint.agent.warm.pacing.pace import Pace
from rallypoint.agent.warm.standby import Hangup, Standby, understand
from rallypoint.base.file_thread import FileThread
from rallypoint.base.log import get_logger

log = get_logger()

HELLO_LIMIT_S = 30.0
"""How long an interpreter may take until it runs our hook; a cold disk needs seconds."""
IMPORT_LIMIT_S = 600.0
"""How long the imports and calls of a standby may take, without the time that it is stopped."""
RECORD_BYTES_MAX = 1 << 20
"""Of the names that a cold worker has recorded."""


class CannotMake(Exception):
    """No standby can work with this interpreter; the text says why."""


class Maker(Struct):
    """What is needed to make standbys, and what was learned about it."""

    warmth: Warmth
    shape: Shape
    inherited: Mapping[str, str]
    """What all workers inherit."""
    sample: Callable[[int], SpawnRequest]
    """Returns the request of the worker with a local rank, as far as it is known without a
    round."""
    guess: Callable[[int], Kinds]
    """Returns the kinds of its output, as far as they are known without a round."""
    terminal_fd: int
    """The terminal that output goes to, if it goes to one."""
    pace: Pace
    """How much of the processors they may use."""
    kinds: dict[int, Kinds] = field(default_factory=dict)
    """Kinds of the output in the last round, by local rank."""
    records: dict[int, str] = field(default_factory=dict)
    """Files with the modules that the last cold workers have looked for, by local rank."""
    has_probed: bool = False
    _failed: set[str] = field(default_factory=set)
    """Modules that could not be imported."""
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(-1, -1))
    """Ids below zero: those of workers are above."""
    _files: FileThread = field(default_factory=lambda: FileThread("records"))

    def probe(self, host: WorkerHost) -> Standby:
        """Start an interpreter that only says whether it runs our hook.

        Raises:
            OSError, WorkerHostError, ValueError: it cannot be started.
        """
        request = self._request(0)
        argv = probe_command(request.argv, self.shape)
        return self._spawn(host, 0, request._replace(argv=argv))

    async def await_probe(self, standby: Standby) -> None:
        """Wait for the answer of a probe.

        Raises:
            CannotMake: the interpreter does not run our hook.
            OSError: it cannot be started.
        """
        python = standby.request.argv[0] if standby.request else ""
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await standby.receive()
        except TimeoutError:
            why = f"{python} did not answer within {HELLO_LIMIT_S:g} s"
            raise CannotMake(why) from None
        except Hangup as error:
            if standby.failure:
                raise OSError(standby.failure) from error
            why = "has flags such as -S, -E or -I, or is no Python"
            raise CannotMake(f"{python} does not run sitecustomize: it {why}") from error
        self.has_probed = True

    def begin(self, host: WorkerHost, rank: int) -> Standby:
        """Start the interpreter of the worker with this local rank.

        Raises:
            OSError, WorkerHostError, ValueError: it cannot be started.
        """
        request = self._request(rank)
        standby = self._spawn(host, rank, request)
        standby.program = request.argv[self.shape.flags_end :]
        return standby

    async def prepare(self, standby: Standby) -> None:
        """Let it import; return when it waits for a round.

        Raises:
            OSError: it cannot be used, or has ended.
        """
        try:
            async with asyncio.timeout(HELLO_LIMIT_S):
                await standby.receive()
                await standby.is_known.wait()
            modules = await self._find_modules(standby.local_rank)
            ready = await self._import(standby, modules)
        except TimeoutError:
            raise OSError(f"it has not imported everything within {IMPORT_LIMIT_S:g} s") from None
        except Hangup as error:
            raise OSError(str(error)) from error
        if ready.get("type") == "stale":
            raise OSError(str(ready.get("why")))
        if ready.get("type") != "ready":
            raise OSError(understand(ready) or "it does not follow the protocol")
        if ready.get("refusal"):
            raise OSError(str(ready["refusal"]))
        for failure in ready.get("failed", ()):
            self._note_failure(str(failure["name"]), str(failure["error"]))

    async def _import(self, standby: Standby, modules: Sequence[str]) -> dict[str, Any]:
        """Return what became of the imports and calls.

        Raises:
            Hangup: the standby has ended.
            TimeoutError: they take too long.
        """
        async with asyncio.timeout(IMPORT_LIMIT_S) as scope:

            def add_stopped_s(seconds: float) -> None:
                if not scope.expired():  # else its task is being cancelled just now
                    scope.reschedule((scope.when() or 0.0) + seconds)

            pacing = self.pace.begin(standby, add_stopped_s)
            try:
                return await standby.prepare(modules, self.warmth.calls, self.shape.path)
            finally:
                pacing.cancel()
                await asyncio.wait((pacing,))

    async def _find_modules(self, rank: int) -> tuple[str, ...]:
        """Return what to import.

        Raises:
            OSError: nothing is known.
        """
        if not self.warmth.is_auto:
            return self.warmth.modules
        path = self.records.get(rank)
        if path is None:
            raise OSError("no worker has recorded what it imports")
        recorded = await self._files.run("reading a record", lambda: _read_names(path))
        modules = importable(recorded, self._failed, self.shape.module)
        if not modules:
            raise OSError("its worker has recorded no import")
        return modules

    def _note_failure(self, name: str, error: str) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        if not self.warmth.is_auto:
            log.warning("standby_import_failed", name=name, error=error, then="workers try again")

    def _spawn(self, host: WorkerHost, rank: int, request: SpawnRequest) -> Standby:
        kinds = self.kinds.get(rank) or self.guess(rank)
        if Kind.OTHER in (kinds.out, kinds.err):
            raise OSError(f"the output of workers goes to {Kind.OTHER.value}")
        with ExitStack() as opened:
            standby = Standby(next(self._ids), rank, kinds, self.terminal_fd)
            opened.callback(standby.close)
            standby.spawn(host, request)
            opened.pop_all()
        return standby

    def _request(self, rank: int) -> SpawnRequest:
        request = self.sample(rank)
        environment = standby_environment(request.env, self.inherited)
        return request._replace(env=environment)


def _read_names(path: str) -> list[str]:
    with open(path, "rb") as file:
        text = file.read(RECORD_BYTES_MAX).decode("utf-8", "replace")
    return text.split("\n")[:-1]  # the last line may be unfinished
