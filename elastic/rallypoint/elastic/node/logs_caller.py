"""Asks an object of the program for the destinations of output, instead of a plug-in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rallypoint.agent.output.destinations import Destinations
from rallypoint.agent.torchelastic.logs_plugin import (
    LogsPlugin,
    LogsPluginError,
    PluginAnswer,
    PluginSpec,
)
from rallypoint.base.file_thread import FileThread

ANSWER_S_MAX = 60.0
"""How long the program may take; it may create folders on a slow file system."""

Envs = Mapping[int, Mapping[str, str]]


class CallerLogsPlugin(LogsPlugin):
    """Calls `reify` of an object of the program, in a thread."""

    reify: Callable[[dict[int, dict[str, str]]], Any] = lambda envs: None
    name: str = ""

    async def begin(self) -> None:
        """Do nothing: there is no other process."""

    async def ask(self, envs: Envs) -> PluginAnswer:
        """Return the destinations of the output of a round's workers.

        Raises:
            LogsPluginError: the object failed, did not answer in time, or left out a worker.
        """
        changed = {rank: dict(env) for rank, env in envs.items()}
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                asked = partial(self.reify, changed)
                dest = await FileThread("logs specs").run("asking for destinations", asked)
        except TimeoutError:
            raise LogsPluginError(f"{self.name}.reify took over {ANSWER_S_MAX:g} s") from None
        except Exception as error:  # whatever the program raises becomes the reason
            text = f"{self.name}.reify failed: {type(error).__name__}: {error}"
            raise LogsPluginError(text) from error
        missing = [rank for rank in envs if rank not in dest.stdouts or rank not in dest.stderrs]
        if missing:
            text = f"{self.name}.reify did not assign the output of worker {missing[0]}"
            raise LogsPluginError(text)
        return PluginAnswer(
            Destinations(
                dict(dest.stdouts),
                dict(dest.stderrs),
                dict(dest.tee_stdouts),
                dict(dest.tee_stderrs),
                dict(dest.error_files),
                dest.filtered_stdout,
                dest.filtered_stderr,
            ),
            {
                rank: {name: value for name, value in env.items() if envs[rank].get(name) != value}
                for rank, env in changed.items()
            },
        )

    async def close(self) -> None:
        """Do nothing: there is no other process."""


def new_caller_plugin(logs_specs: Any) -> LogsPlugin:
    """Return the plug-in that asks this object."""
    spec = PluginSpec("", "", None, 0, 0, None)
    name = type(logs_specs).__name__
    return CallerLogsPlugin(spec=spec, environment={}, reify=logs_specs.reify, name=name)
