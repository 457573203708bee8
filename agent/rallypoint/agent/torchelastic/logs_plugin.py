"""A plug-in of torch's group `torchrun.logs_specs`, in a process of its own.

Its class derives from one of torch's, which the agent does not import; and what a stranger's code
does, or for how long, must not hold up heartbeats.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rallypoint.agent.foreign import LOGS_SPECS
from rallypoint.agent.output.destinations import Destinations
from rallypoint.wire.log import get_logger

log = get_logger()

GROUP = "torchrun.logs_specs"
OURS = "default"
"""torch's own, whose work the agent does itself."""
MADE_S_MAX = 60.0
"""Importing torch from a cold network disk takes this long at worst."""
ANSWER_S_MAX = 10.0
END_S_MAX = 2.0
"""How long a plug-in may take to end after its standard input has."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Paths and changed variables of 4,096 workers."""

Envs = Mapping[int, Mapping[str, str]]
"""Variables of each worker, by local rank."""


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """Which plug-in, and what it is made with."""

    name: str
    python: str
    """The workers' interpreter."""
    log_dir: str | None
    """As the operator gave it."""
    redirects: int | dict[int, int]
    """Number of the streams, 0 to 3, of all workers or by local rank."""
    tee: int | dict[int, int]
    local_ranks: tuple[int, ...] | None
    """Whose output is shown; None: of all."""


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """What a plug-in said of a round."""

    destinations: Destinations
    environments: dict[int, dict[str, str]]
    """Variables that it has set or changed, by local rank."""


class LogsPluginError(Exception):
    """The plug-in cannot say where output goes; the text is one line that names it."""


def list_logs_specs() -> Sequence[str]:
    """Return the names that are installed in this interpreter, sorted; none is imported."""
    from importlib import metadata  # takes a while, and few command lines need it

    return sorted({OURS, *(point.name for point in metadata.entry_points(group=GROUP))})


@dataclass(slots=True)
class LogsPlugin:
    """The process that hosts the plug-in; begun once, asked once per round.

    Only one question may be open; one that is cancelled is not, and its answer is passed over.
    """

    spec: PluginSpec
    environment: Mapping[str, str]
    _process: asyncio.subprocess.Process | None = None
    _is_made: bool = False
    _failed: str = ""
    """How it failed to be made."""
    _is_silent: bool = True
    """It has not answered the last question, or is not made yet."""
    _asked: int = 0
    """Number of the last question."""

    async def begin(self) -> None:
        """Start the process; the plug-in is made while the agent goes on."""
        spec = self.spec
        options = {
            "log_dir": spec.log_dir,
            "redirects": spec.redirects,
            "tee": spec.tee,
            "local_ranks_filter": spec.local_ranks,
        }
        words = (spec.python, LOGS_SPECS, str(os.getpid()), spec.name, json.dumps(options))
        try:
            self._process = await asyncio.create_subprocess_exec(
                *words,
                env=dict(self.environment),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=ANSWER_BYTES_MAX,
                process_group=0,  # Ctrl-C is not for it: rounds that are on may end with it
            )
        except OSError as error:  # told when it is asked
            log.warning("logs_plugin_not_started", python=spec.python, error=str(error))

    async def ask(self, envs: Envs) -> PluginAnswer:
        """Return where the output of a round's workers goes.

        Args:
            envs: for local ranks 0 to n-1, without what workers have from the agent.

        Raises:
            LogsPluginError: it failed, does not answer in time, or says nothing about a worker.
        """
        await self._await_made()
        self._asked += 1
        question = {"number": self._asked, "envs": envs}
        answer = await self._read(self._asked, ANSWER_S_MAX, json.dumps(question))
        try:
            found = _parse(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise self._error(f"answered with what is no LogsDest: {error!r}") from error
        told = found.destinations.stdouts.keys() & found.destinations.stderrs.keys()
        silent = [rank for rank in envs if rank not in told]
        if silent:
            raise self._error(f"says nothing about the output of worker {silent[0]}")
        return found

    async def _await_made(self) -> None:
        """Wait until there is an object to ask; how that failed is told each time."""
        if self._failed:
            raise LogsPluginError(self._failed)
        if not self._is_made:
            try:
                await self._read(0, MADE_S_MAX)
            except LogsPluginError as error:
                self._failed = str(error)
                raise
            self._is_made = True

    async def _read(self, number: int, limit_s: float, question: str = "") -> dict[str, Any]:
        """Put a question, if there is one, and return the answer with its number."""
        process = self._process
        if process is None:
            raise self._error(f"cannot be hosted by {self.spec.python}")
        assert process.stdin is not None and process.stdout is not None
        self._is_silent = True
        try:
            async with asyncio.timeout(limit_s):
                if question:
                    process.stdin.write(f"{question}\n".encode())
                    await process.stdin.drain()
                while line := await process.stdout.readline():
                    answer: dict[str, Any] = json.loads(line)
                    if answer["number"] == number:
                        break
                else:
                    raise self._error("has ended")
        except TimeoutError:
            raise self._error(f"did not answer in {limit_s:g} s") from None
        except OSError:
            raise self._error("has ended") from None
        except ValueError as error:  # a line beyond the limit, or no JSON
            raise self._error(f"gave no answer: {error}") from error
        self._is_silent = False
        if "error" in answer:
            raise self._error(f"failed: {answer['error']}")
        return answer

    def _error(self, what: str) -> LogsPluginError:
        return LogsPluginError(f"the plug-in --logs-specs={self.spec.name} {what}")

    async def close(self) -> None:
        """Let the plug-in end; kill it if it does not, at once if it was asked and is silent."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if self._is_silent and process.returncode is None:
            process.kill()
        try:
            async with asyncio.timeout(END_S_MAX):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _parse(answer: Mapping[str, Any]) -> PluginAnswer:
    fields = dict(answer["destinations"])
    for name in ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files"):
        fields[name] = {int(rank): str(path) for rank, path in fields[name].items()}
    environments = {int(rank): dict(env) for rank, env in answer["envs"].items()}
    return PluginAnswer(Destinations(**fields), environments)
