"""The back end `rallypoint` of torchrun: `torchrun --rdzv-backend=rallypoint`.

The entry point is `handler`. torch calls it in every process that imports its launcher, so this
module imports nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

NAME = "rallypoint"
"""What --rdzv-backend is given."""


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return what makes a handler: the entry point in the group `torchrun.handlers`."""
    return create_handler


def register() -> None:
    """Make the back end known to torch. Only torch before 2.6 needs this call."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(NAME, create_handler)


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Return a handler for these parameters; it connects at the first rendezvous.

    Raises:
        ValueError: when a parameter is wrong; the text says which one.
    """
    from rallypoint.wire.loading import load_grpc

    load_grpc(is_quiet=True)  # its C core would write its own lines
    from rallypoint.torch.rendezvous.handler import CoordinatorRendezvousHandler

    return CoordinatorRendezvousHandler(params)
