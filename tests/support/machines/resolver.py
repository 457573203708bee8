"""A resolver whose answers a test decides, in place of the system's."""

from __future__ import annotations

import socket
import threading

import pytest

from rallypoint.base import names
from rallypoint.base.names import Found

LIMIT_S = 20.0


class Resolver:
    """Knows the names that a test gives it; one that is held answers when the test lets it."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, ...]] = {"localhost": ("127.0.0.1",)}
        self.errors: dict[str, Exception] = {}
        self.asked: list[str] = []
        self.was_asked = threading.Event()
        self._held: dict[str, threading.Event] = {}

    def hold(self, host: str) -> None:
        """Let look-ups of a name take until `release`."""
        self._held.setdefault(host, threading.Event()).clear()

    def release(self, host: str) -> None:
        """Let look-ups of a name end, also those that come."""
        self._held[host].set()

    def look_up(self, host: str) -> Found:
        """Answer in place of the system."""
        self.asked.append(host)
        self.was_asked.set()
        if host in self._held:
            assert self._held[host].wait(LIMIT_S), "the test ends without this look-up"
        if host in self.errors:
            raise self.errors[host]
        if host not in self.known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return Found(self.known[host])

    def release_all(self) -> None:
        """Let every thread end."""
        for one in self._held.values():
            one.set()


def install(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """Let a new resolver answer, which forgets what was known before."""
    made = Resolver()
    names.forget()
    monkeypatch.setattr(names, "look_up_now", made.look_up)
    monkeypatch.setattr(names, "AGAIN_S", 0.0)
    return made
