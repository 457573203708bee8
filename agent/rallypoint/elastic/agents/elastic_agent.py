"""What every agent can do."""

from __future__ import annotations

import abc

from rallypoint.elastic.values.run_result import RunResult
from rallypoint.elastic.values.worker_group import WorkerGroup

DEFAULT_ROLE = "default"


class ElasticAgent(abc.ABC):
    """Runs the workers of one node until the job ends."""

    @abc.abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Take part in the job until it ends.

        Args:
            role: ignored, as by torch: an agent has one role, that of its specification.

        Returns:
            What became of the workers of this node, by global rank.

        Raises:
            RendezvousError: the node could not take part to the end.
            SignalException: a signal has ended the agent.
        """

    @abc.abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the workers of this node; the object changes while the agent runs."""
