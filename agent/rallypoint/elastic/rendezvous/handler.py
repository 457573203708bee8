"""What an agent asks of a rendezvous: when a round begins, and the place of this node in it."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class RendezvousStoreInfo:
    """Where rank 0 of a round hosts the workers' store."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int


class RendezvousInfo:
    """The place of this node in a round."""

    def __init__(
        self,
        store: Any,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
    ) -> None:
        """Keep the place.

        Args:
            store: keys and values of the round.
            rank: number of the node, from 0.
            world_size: nodes of the round.
            bootstrap_store_info: address of the workers' store.
        """
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        """Keys and values that the nodes of the round share."""
        return self._store

    @property
    def rank(self) -> int:
        """The number of the node in the round."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The nodes of the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo:
        """Where the workers find their store."""
        return self._bootstrap_store_info


class RendezvousHandler(abc.ABC):
    """The part of one node in the rendezvous of a job. The methods are torch's."""

    @abc.abstractmethod
    def get_backend(self) -> str:
        """Return the name under which the handler is registered."""

    @property
    def use_agent_store(self) -> bool:
        """True if the agent hosts the workers' store, false if the worker with rank 0 does."""
        return False

    @abc.abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until a round begins that includes this node, and return its place.

        Raises:
            RendezvousClosedError: the job has ended.
            RendezvousGracefulExitError: the job has ended while this node was a spare.
            RendezvousTimeoutError: no round began in time.
            RendezvousConnectionError: the coordinator cannot be reached.
            RendezvousStateError: the coordinator refuses this node.
        """

    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Return whether the job has ended, as far as this node knows."""

    @abc.abstractmethod
    def set_closed(self) -> None:
        """End the job for all nodes: no further round begins."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return a positive number if the current round has to end, so that another one begins."""

    @abc.abstractmethod
    def get_run_id(self) -> str:
        """Return the name of the job."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Leave the job, and free everything; return whether that succeeded."""
