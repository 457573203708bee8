"""A seat whose workers the supervisor of `node-agent` runs."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial

from rallypoint.agent.agent import Agent
from rallypoint.agent.core import inputs
from rallypoint.agent.core.held_round import Stage
from rallypoint.agent.helper.host import WorkerHost
from rallypoint.agent.helper.leftovers import AGENT_MARK_ENV
from rallypoint.agent.helper.subreaping import hold_subreaper, release_subreaper
from rallypoint.agent.launch.plan import LaunchPlan
from rallypoint.agent.life import new_supervisor
from rallypoint.agent.torchelastic.logs_plugin import LogsPlugin
from rallypoint.base.console import Consoles
from rallypoint.elastic.node.local_workers import LocalWorkers
from rallypoint.elastic.node.seat import Seat
from rallypoint.embedded.node import EmbeddedNode, View


class LocalSeat(Seat):
    """The seat of a program whose workers a supervisor runs."""

    consoles: Consoles | None = None
    """Where the workers' output goes; None: to the streams of this process."""
    _workers: LocalWorkers
    _holds_subreaper = False

    def __init__(self, plan: LaunchPlan, host: WorkerHost, plugin: LogsPlugin | None) -> None:
        """Prepare a node.

        Args:
            plan: what it brings.
            host: the helper process, which is closed with the node.
            plugin: assigns the destinations of output; None: the plan does.
        """
        self._host = host
        self._plugin = plugin
        super().__init__(EmbeddedNode(plan, self._new_workers))

    def _new_workers(self, agent: Agent, tasks: asyncio.TaskGroup) -> LocalWorkers:
        hold_subreaper()
        self._holds_subreaper = True
        function = agent.settings.launch.function
        if function is None or not function.is_forked:  # without exec, a process shows no variable
            mark = agent.settings.environment[AGENT_MARK_ENV]
            self._host.mark = f"{AGENT_MARK_ENV}={mark}"
        self._workers = new_supervisor(
            agent, self._host, self.consoles or Consoles.open(), tasks, LocalWorkers, self._plugin
        )
        return self._workers

    def begin(self) -> View:
        """Start the workers of the taken round; return the view once all have a pid.

        The view tells whether that has failed, or the round was stopped meanwhile.

        Raises:
            RoundGone: it was stopped before.
        """
        number = self.number
        self._node.call(partial(self._workers.begin_round, number, dict(os.environ)))

        def is_begun(view: View) -> bool:
            held = view.held
            if held is None or held.number != number or held.is_stopping or view.is_ending:
                return True
            return held.start_failure is not None or all(one.pid for one in held.workers)

        return self._node.wait(is_begun)

    def stop(self, signum: signal.Signals) -> None:
        """Let the stop signal of the taken round pass, and wait until nothing of it runs."""
        number = self.number
        if self._node.view.is_clean(number):
            return
        held = self._node.view.held
        if self.is_wanted and held is not None and held.stage is not Stage.FAILED:
            self.fail(0, "the program has stopped the workers")
        self._node.call_if_alive(partial(self._workers.release, signum))
        self._node.wait(lambda view: view.is_clean(number))

    def forward(self, signum: int) -> None:
        """Pass a notification on to the workers."""
        self._node.post(inputs.SignalReceived(signum))

    def close(self) -> None:
        """Leave the job if that has not happened, and wait until nothing runs here."""
        super().close()
        self._host.discard()  # the agent may have failed before it took the helper
        if self._holds_subreaper:
            self._holds_subreaper = False
            release_subreaper()
