"""The description of a rendezvous, with torch's meaning."""

from __future__ import annotations

from typing import Any

from rallypoint.base.values import BadValue, truth


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
            raise ValueError(f"rendezvous option {key}: {value!r} is no whole number") from None
