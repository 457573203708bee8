"""A plug-in of torch's group `torchrun.logs_specs`, in a separate process.

Its class derives from one of torch's, and the agent does not import torch. A plug-in may also
block, which must not delay heartbeats.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from rallypoint.agent.in_worker import LOGS_SPECS
from rallypoint.agent.output.destinations import Destinations
from rallypoint.base.interpreter import list_workers_path
from rallypoint.base.log import get_logger

log = get_logger()

GROUP = "torchrun.logs_specs"
OURS = "default"
"""torch's own plug-in, which the agent implements itself."""
MADE_S_MAX = 60.0
"""The longest import of torch, from a cold network disk."""
ANSWER_S_MAX = 10.0
END_S_MAX = 2.0
"""How long a plug-in may take to end after its standard input was closed."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Room for the paths and changed variables of 4,096 workers."""

Envs = Mapping[int, Mapping[str, str]]
"""Variables of each worker, by local rank."""


class PluginSpec(Struct, frozen=True):
    """The name of a plug-in, and its arguments."""

    name: str
    python: str
    """The workers' interpreter."""
    log_dir: str | None
    """As given on the command line."""
    redirects: int | dict[int, int]
    """Number of the streams, 0 to 3, for all workers or by local rank."""
    tee: int | dict[int, int]
    local_ranks: tuple[int, ...] | None
    """Workers whose output the console shows; None: all."""


class PluginAnswer(Struct, frozen=True):
    """A plug-in's answer for a round."""

    destinations: Destinations
    environments: dict[int, dict[str, str]]
    """Variables that the plug-in has set or changed, by local rank."""


class LogsPluginError(Exception):
    """The plug-in does not assign destinations; the text is one line that names the plug-in."""


def list_logs_specs() -> Sequence[str]:
    """Return the names of plug-ins that workers in this environment find, sorted."""
    from importlib import metadata  # slow to import, and few command lines need it

    found = metadata.distributions(path=list_workers_path())
    points = (point for one in found for point in one.entry_points.select(group=GROUP))
    return sorted({OURS, *(point.name for point in points)})


class LogsPlugin(Struct):
    """The process that hosts the plug-in. It starts once, and answers one question per round.

    Only one question may be open. A cancelled question is closed; its answer is skipped.
    """

    spec: PluginSpec
    environment: Mapping[str, str]
    _process: asyncio.subprocess.Process | None = None
    _questions: asyncio.StreamWriter | None = None
    _answers: asyncio.StreamReader | None = None
    _is_made: bool = False
    _failed: str = ""
    """Why the plug-in could not be made."""
    _is_silent: bool = True
    """The plug-in has not answered the last question, or is not made yet."""
    _asked: int = 0
    """Number of the last question."""

    async def begin(self) -> None:
        """Start the process. The agent does not wait until the plug-in is made."""
        spec = self.spec
        options = {
            "log_dir": spec.log_dir,
            "redirects": spec.redirects,
            "tee": spec.tee,
            "local_ranks_filter": spec.local_ranks,
        }
        words = (spec.python, LOGS_SPECS, str(os.getpid()), spec.name, json.dumps(options))
        ours, theirs = socket.socketpair()
        self._answers, self._questions = await asyncio.open_connection(
            sock=ours, limit=ANSWER_BYTES_MAX
        )
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *words,
                    env=dict(self.environment),
                    stdin=theirs.fileno(),
                    stdout=2,  # the agent's standard output is that of the workers
                    process_group=0,  # Ctrl-C must not end it: the end of a round may need it
                )
            except OSError as error:  # `ask` reports it too
                log.warning("logs_plugin_not_started", python=spec.python, error=str(error))

    async def ask(self, envs: Envs) -> PluginAnswer:
        """Ask for the destinations of the output of a round's workers.

        Args:
            envs: for local ranks 0 to n-1, without inherited variables.

        Raises:
            LogsPluginError: it failed, did not answer in time, or left out a worker.
        """
        await self._await_made()
        self._asked += 1
        question = {"number": self._asked, "envs": envs}
        answer = await self._read(self._asked, ANSWER_S_MAX, json.dumps(question))
        try:
            parsed = _parse(answer)
        except (KeyError, TypeError, ValueError) as error:
            raise self._error(f"did not return a LogsDest: {error!r}") from error
        assigned = parsed.destinations.stdouts.keys() & parsed.destinations.stderrs.keys()
        missing = [rank for rank in envs if rank not in assigned]
        if missing:
            raise self._error(f"did not assign the output of worker {missing[0]}")
        return parsed

    async def _await_made(self) -> None:
        """Wait until the plug-in is made; raise the same error each time if that failed."""
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
        """Send a question, if there is one, and return the answer with its number."""
        process = self._process
        if process is None:
            raise self._error(f"could not be started with {self.spec.python}")
        assert self._questions is not None and self._answers is not None
        self._is_silent = True
        try:
            async with asyncio.timeout(limit_s):
                if question:
                    self._questions.write(f"{question}\n".encode())
                    await self._questions.drain()
                while line := await self._answers.readline():
                    answer: dict[str, Any] = json.loads(line)
                    if answer["number"] == number:
                        break
                else:
                    raise self._error("has ended")
        except TimeoutError:
            raise self._error(f"did not answer in {limit_s:g} s") from None
        except OSError:
            raise self._error("has ended") from None
        except ValueError as error:  # a line over the limit, or no JSON
            raise self._error(f"gave an invalid answer: {error}") from error
        self._is_silent = False
        if "error" in answer:
            raise self._error(f"failed: {answer['error']}")
        return answer

    def _error(self, what: str) -> LogsPluginError:
        return LogsPluginError(f"the plug-in --logs-specs={self.spec.name} {what}")

    async def close(self) -> None:
        """Let the plug-in end; kill it if it does not, at once if a question is open."""
        process = self._process
        if self._questions is not None:
            self._questions.close()
        if process is None:
            return
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
