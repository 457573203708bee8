"""The life of an agent from start to exit: opens its parts, and closes them in order.

A bug that shows while the parts open or close is logged like any other. Each part is closed within
a limit, whatever became of the others. What an agent leaves undone when it exits, its helper does:
it kills everything that the workers started.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from rallypoint.agent.agent import Agent
from rallypoint.agent.containment import GuardedTasks, handle_errors
from rallypoint.agent.core import inputs
from rallypoint.agent.core.desired import RunOrder, without_round
from rallypoint.agent.helper.host import WorkerHost, become_subreaper
from rallypoint.agent.node_workers import Workers
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.round.environ import without_access
from rallypoint.agent.round.supervisor import Supervisor
from rallypoint.agent.settings import Settings
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.agent.torchelastic.timers import TimerFileRefused
from rallypoint.base.console import Consoles
from rallypoint.base.exit_codes import EXIT_FAILED, EXIT_USAGE
from rallypoint.base.log import get_logger

if TYPE_CHECKING:  # a node that preloads nothing loads nothing of it
    from rallypoint.agent.preload.command import Preload, Shape

log = get_logger()

_S = TypeVar("_S", bound=Supervisor)

CLOSE_S_MAX = 15.0
"""How long one part may take to close; longer than any of them takes when nothing hangs."""


async def live(
    agent: Agent, host: WorkerHost, consoles: Consoles, failed: asyncio.Future[None] | None = None
) -> int:
    """Take part in the job until it ends; return the exit code."""
    become_subreaper()
    return await take_part(
        agent, lambda tasks: new_supervisor(agent, host, consoles, tasks, Supervisor), failed
    )


async def take_part(
    agent: Agent,
    new_workers: Callable[[asyncio.TaskGroup], Workers],
    failed: asyncio.Future[None] | None = None,
) -> int:
    """Take part in the job with any kind of workers; return the exit code.

    Args:
        agent: the agent, without workers.
        new_workers: makes its workers; the group runs their tasks.
        failed: gets the exception when a built-in coordinator cannot continue; None: there is none.
    """
    handle_errors(asyncio.get_running_loop(), agent.fail)
    async with GuardedTasks(agent.fail) as tasks:
        agent.supervisor = new_workers(tasks)
        linked = tasks.create_task(_begin_and_link(agent))
        if failed is not None:
            tasks.create_task(_end_with(failed, agent))
        try:
            await agent.done.wait()
            if agent.has_lost_core:
                await agent.supervisor.end_workers(agent.settings.shutdown_timeout_ms / 1000)
            else:
                await _close(agent, agent.say_goodbye)
        finally:
            linked.cancel()
            agent.stop_timers()
            for part in agent.supervisor.parts():
                await _close(agent, part)
            agent.ports.close()
            tasks.cancel()
    assert agent.exit_code is not None
    return agent.exit_code


async def _end_with(failed: asyncio.Future[None], agent: Agent) -> None:
    """End the agent when its built-in coordinator fails: no other one will ever serve it."""
    await asyncio.wait((failed,))
    error = failed.exception()
    log.error("coordinator_failed", exc_info=error)
    agent.on_dismissed(EXIT_FAILED, f"the built-in coordinator failed: {error!r}")


async def _begin_and_link(agent: Agent) -> None:
    await _begin(agent)
    await agent.has_port.wait()
    await agent.link.run()


async def _close(agent: Agent, part: Callable[[], Awaitable[None]]) -> None:
    """Close one part within the limit; log why that failed."""
    try:
        async with asyncio.timeout(CLOSE_S_MAX):
            await part()
    except TimeoutError:
        log.warning("part_not_closed", part=part.__name__, within_s=CLOSE_S_MAX)
    except Exception as error:  # noqa: BLE001  # whatever fails here, the other parts have to close
        agent.fail(error)


def new_supervisor(
    agent: Agent,
    host: WorkerHost,
    consoles: Consoles,
    tasks: asyncio.TaskGroup,
    kind: type[_S],
    plugin: LogsPlugin | None = None,
) -> _S:
    """Return a supervisor with an agent's settings.

    Args:
        agent: reports to the coordinator.
        host: the helper process.
        consoles: where the workers' output goes.
        tasks: runs what takes time.
        kind: the class of the supervisor.
        plugin: assigns the destinations of output; None: the settings do.
    """
    settings = agent.settings
    if plugin is None and settings.logs_plugin is not None:
        plugin = LogsPlugin(settings.logs_plugin, without_access(settings.environment))
    return kind(
        host=host,
        launch=settings.launch,
        job_id=settings.job_id,
        environment=settings.environment,
        variables=agent.variables,
        post=agent.post,
        tasks=tasks,
        outputs=WorkerOutputs(
            settings.output,
            consoles,
            LogFolder(settings.output.log_dir, settings.job_id),
            node_name=lambda: agent.node_name,
        ),
        plugin=plugin,
        preload=_preload(settings),
        is_wanted=agent.is_wanted,
        began=agent.log.round_began,
        limits=settings.hang_limits,
    )


def _preload(settings: Settings) -> tuple[Preload, Shape, RunOrder] | None:
    if settings.preload is None:
        return None
    # For functions it is the program's own: the agent runs in its process.
    try:
        shape = settings.launch.shape(sys.path[0])
    except FileNotFoundError:
        why, then = "the working directory was removed", "every worker imports by itself"
        log.warning("preload_given_up", why=why, then=then)
        return None
    return settings.preload, shape, without_round(settings.workers, settings.role)


async def _begin(agent: Agent) -> None:
    # First, so that a signal does not leave behind files made from here on.
    loop = asyncio.get_running_loop()
    for signum in agent.settings.signals:
        loop.add_signal_handler(signum, agent.post, inputs.SignalReceived(signum))
    try:
        await agent.supervisor.begin()
    except TimerFileRefused as error:
        agent.on_dismissed(EXIT_USAGE, str(error))
    agent.reserve_port()
