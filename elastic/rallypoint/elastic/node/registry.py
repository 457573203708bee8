"""The back ends of a rendezvous by name: one handler serves all that are built in."""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.elastic.node.coordinated import CoordinatedRendezvous
from rallypoint.elastic.rendezvous import RendezvousHandler, RendezvousParameters

OWN_BACKEND = "rallypoint"
BACKENDS = (OWN_BACKEND, "c10d", "static", "etcd", "etcd-v2")
"""Our name and torch's: behind all of them is the coordinator."""

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Handlers by the names of their backends."""

    def __init__(self) -> None:
        """Begin without handlers."""
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Register a backend.

        Args:
            backend: its name, which `get_backend` of its handlers returns.
            creator: makes a handler.

        Raises:
            ValueError: the name is empty, or belongs to another creator.
        """
        if not backend:
            raise ValueError("a rendezvous backend needs a name")
        known = self._creators.setdefault(backend, creator)
        if known != creator:
            raise ValueError(f"the rendezvous backend {backend!r} is already registered: {known!r}")

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Return a new handler.

        Raises:
            ValueError: no such backend is registered.
            RuntimeError: its handler has another name.
        """
        creator = self._creators.get(params.backend)
        if creator is None:
            known = ", ".join(sorted(self._creators))
            raise ValueError(
                f"the rendezvous backend {params.backend!r} is not registered; known: {known}"
            )
        handler = creator(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"the handler of the rendezvous backend {params.backend!r} says that it belongs "
                f"to {handler.get_backend()!r}"
            )
        return handler


rendezvous_handler_registry = RendezvousHandlerRegistry()
"""The handlers that `LaunchConfig.rdzv_backend` can name."""
for _name in BACKENDS:
    rendezvous_handler_registry.register(_name, CoordinatedRendezvous)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return a new handler for a backend of `rendezvous_handler_registry`.

    Raises:
        ValueError: no such backend is registered, or an option is wrong.
    """
    return rendezvous_handler_registry.create_handler(params)
