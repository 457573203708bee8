"""Lists that come in pages, and streams that are opened again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import grpc
from msgspec import Struct

from rallypoint.client.attempts import READ_S_MAX, Call, Method, Request, Response

Item = TypeVar("Item")


class Listing(Struct, Generic[Request, Response, Item]):
    """A list, and which page of it is read next."""

    method: Method[Request, Response]
    request: Request
    """For the next page."""
    items: Callable[[Response], Iterable[Item]]
    """The entries of a page."""
    learn: Callable[[Response], None] | None = None
    """Notes what a page says about the coordinator."""

    def call(self) -> Call[Request, Response]:
        """Return the call for the next page."""
        return Call(self.method, self.request, attempt_s=READ_S_MAX, learn=self.learn)

    def advance(self, page: Response) -> bool:
        """Continue after this page; return whether there is another one."""
        token: str = page.next_page_token  # type: ignore[attr-defined]  # each list has its type
        self.request.page_token = token  # type: ignore[attr-defined]
        return bool(token)


class Following(Struct, Generic[Request, Response, Item]):
    """A stream, and where it continues after an interruption."""

    method: Method[Request, Response]
    request: Request
    """For the next connection."""
    take: Callable[[Response], Iterable[Item]]
    """Returns what an answer brings, and changes the request so that it continues after it."""
    transient: frozenset[grpc.StatusCode] = frozenset()
    """After an interruption, these statuses may pass, too."""
