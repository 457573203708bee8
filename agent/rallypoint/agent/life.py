"""The life of an agent from start to exit: opens its parts, and closes them in order."""

from __future__ import annotations

import asyncio

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.core.reports import GoodbyeKind
from rallypoint.agent.helper.host import WorkerHost, become_subreaper
from rallypoint.agent.output.log_folder import LogFolder
from rallypoint.agent.output.outputs import WorkerOutputs
from rallypoint.agent.session.link import FAREWELL_S_MAX, Link
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.agent.torchelastic.timers import TimerFileRefused
from rallypoint.agent.workers.supervisor import Supervisor
from rallypoint.base.console import Consoles
from rallypoint.base.exit_codes import EXIT_USAGE
from rallypoint.base.log import get_logger

log = get_logger()


async def live(agent: Agent, host: WorkerHost, consoles: Consoles) -> int:
    """Take part in the job until it ends; return the exit code."""
    become_subreaper()
    async with asyncio.TaskGroup() as tasks:
        agent.link = Link(agent.settings.coordinator, agent.settings.incarnation, agent)
        agent.supervisor = _new_supervisor(agent, host, consoles, tasks)
        await _begin(agent)
        linked = tasks.create_task(agent.link.run())
        try:
            await agent.done.wait()
            _record_end(agent)
            await _send_last_reports(agent)
        finally:
            linked.cancel()
            agent.stop_timer()
            await agent.supervisor.close()
            agent.ports.close()
    assert agent.exit_code is not None
    return agent.exit_code


def _new_supervisor(
    agent: Agent, host: WorkerHost, consoles: Consoles, tasks: asyncio.TaskGroup
) -> Supervisor:
    settings = agent.settings
    plugin = settings.logs_plugin
    return Supervisor(
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
        plugin=None if plugin is None else LogsPlugin(plugin, settings.environment),
        is_wanted=agent.is_wanted,
    )


async def _begin(agent: Agent) -> None:
    # First, so that a signal does not leave behind files made from here on.
    loop = asyncio.get_running_loop()
    for signum in agent.settings.signals:
        loop.add_signal_handler(signum, agent.post, inputs.SignalReceived(signum))
    supervisor = agent.supervisor
    if supervisor.plugin is not None:
        await supervisor.plugin.begin()
    try:
        supervisor.attach()
    except TimerFileRefused as error:
        agent.on_dismissed(EXIT_USAGE, str(error))
    agent.post(inputs.PortReserved(agent.ports.reserve()))


def _record_end(agent: Agent) -> None:
    events, ending = agent.listener.events, agent.state.ending
    if events is not None and ending is not None:
        is_orderly = ending.kind is GoodbyeKind.FINISHED or ending.exit_code == 0
        events.ended(is_orderly=is_orderly, text=ending.text)


async def _send_last_reports(agent: Agent) -> None:
    """Wait until the last report is acknowledged, if there is a session."""
    try:
        async with asyncio.timeout(FAREWELL_S_MAX):
            await agent.reported.wait()
    except TimeoutError:
        log.info("farewell_not_acknowledged")
