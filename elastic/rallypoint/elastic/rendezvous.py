"""How the nodes of a job meet: torch's names, with the coordinator behind them.

An agent asks a handler when a round begins, and for the place of this node in it.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar

from rallypoint.base.values import BadValue, truth


class RendezvousError(Exception):
    """The base of all errors of a rendezvous."""


class RendezvousClosedError(RendezvousError):
    """The job has ended: no further round begins."""


class RendezvousTimeoutError(RendezvousError):
    """No round began in time."""


class RendezvousConnectionError(RendezvousError):
    """The coordinator cannot be reached, or does not answer any more."""


class RendezvousStateError(RendezvousError):
    """The coordinator refuses this node: it does not fit the job."""


class RendezvousGracefulExitError(RendezvousError):
    """The job has ended while this node was a spare. Nothing has failed."""


@dataclass
class RendezvousStoreInfo:
    """Where rank 0 of a round hosts the workers' store."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int


@dataclass(frozen=True)
class RendezvousInfo:
    """The place of this node in a round."""

    store: Any
    """Keys and values that the nodes of the round share."""
    rank: int
    """The number of the node in the round, from 0."""
    world_size: int
    """The nodes of the round."""
    bootstrap_store_info: RendezvousStoreInfo
    """Where the workers find their store."""


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


class RendezvousParameters:
    """What a handler is made from.

    Attributes:
        backend: name of a registered handler.
        endpoint: host and port of the coordinator; empty for a node that is alone.
        run_id: name of the job.
        min_nodes: nodes that a round needs, at least 1.
        max_nodes: nodes that a round takes, at least `min_nodes`.
        local_addr: address of this node for workers elsewhere; None: it is found.
        config: further options.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the numbers, and keep everything.

        Raises:
            ValueError: there is no backend, or the numbers of nodes contradict each other.
        """
        if not backend:
            raise ValueError("a rendezvous needs the name of a backend, such as 'rallypoint'")
        if min_nodes < 1:
            raise ValueError(f"min_nodes must be at least 1, not {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes ({max_nodes}) must be at least min_nodes ({min_nodes})")
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        """Return an option, or `default` if it is not given."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """Return an option as a truth value: a bool, 0 or 1, or a word such as "yes".

        Raises:
            ValueError: it is none of these.
        """
        value = self.get(key, default)
        try:
            return None if value is None else truth(value)
        except BadValue as bad:
            raise ValueError(f"rendezvous option {key}: {bad}") from None

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """Return an option as a whole number.

        Raises:
            ValueError: it is none.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ValueError(f"rendezvous option {key}: {value!r} is not a whole number") from None
