"""How the nodes of a job meet: torch's names, with the coordinator behind them."""

from rallypoint.elastic.rendezvous.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rallypoint.elastic.rendezvous.handler import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from rallypoint.elastic.rendezvous.parameters import RendezvousParameters
from rallypoint.elastic.rendezvous.registry import (
    RendezvousHandlerCreator,
    RendezvousHandlerRegistry,
    get_rendezvous_handler,
    rendezvous_handler_registry,
)

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]
