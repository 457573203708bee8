"""Rendezvous handlers in this process, each called by its own thread as torchrun would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters

from rallypoint.torch.rendezvous import create_handler
from rallypoint.torch.rendezvous.handler import CoordinatorRendezvousHandler

LIMIT_S = 20.0


class Call:
    """A call in a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as error:  # noqa: BLE001  # the test gets it
            self._error = error

    def result(self) -> Any:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), "the call has not ended"
        if self._error is not None:
            raise self._error
        return self._value


class Handlers:
    """The handlers of one job; leaving the context shuts them down."""

    def __init__(self, endpoint: str, *, nodes: tuple[int, int] = (2, 2), **config: Any) -> None:
        self.endpoint = endpoint
        self.nodes = nodes
        self.config = {"last_call_timeout": 10, "settle_time": 0, "grow_after": 0} | config
        self.all: list[CoordinatorRendezvousHandler] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in [Call(one.shutdown) for one in self.all]:
            call.result()

    def new(self, name: str, **config: Any) -> CoordinatorRendezvousHandler:
        nodes = config.pop("nodes", self.nodes)
        params = RendezvousParameters(
            *("rallypoint", self.endpoint, "j", *nodes, "127.0.0.1"),
            **(self.config | {"node_name": name} | config),
        )
        handler = create_handler(params)
        assert isinstance(handler, CoordinatorRendezvousHandler)
        self.all.append(handler)
        return handler

    def form(self, *handlers: CoordinatorRendezvousHandler) -> list[RendezvousInfo]:
        """Let these handlers form a round; return their places."""
        return [call.result() for call in [Call(one.next_rendezvous) for one in handlers]]


def wait_stopped(handler: CoordinatorRendezvousHandler) -> str:
    """Wait until a handler announces the end of its round; return why."""
    node = handler._require_node()
    node.wait(lambda view: node._stop_reason is not None, LIMIT_S)
    assert handler.num_nodes_waiting() == 1
    return node.stop_reason or ""
