"""Host names, and the addresses that they have now.

The resolver of the system is asked, as other programs do: it knows the hosts file, and whatever
else this host is set up to ask. A look-up blocks, cannot be interrupted, and may take minutes when
name servers are silent. So a daemon thread makes it, and callers wait within a limit.

A look-up outlives a caller that gives up: the next caller joins it, or finds what it has found.
Addresses that were found are kept and given at once; beside that, the name is looked up again for
the next attempt. So a name server that fails later delays no reconnection, and a host that moves is
found. A name is forgotten only when the resolver says that it does not exist.

What a look-up finds, or why it finds nothing, is also the answer to those who ask in the next
moment: at its start a process asks for the same name several times.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import os
import socket
import threading
import time
from concurrent.futures import Future
from functools import cache
from typing import NamedTuple

LOOK_UP_S_MAX = 0.5
"""How long an attempt waits. Then its owner can tell what takes so long, and try again."""
LOOK_UPS_MAX = 32
"""Names that are looked up at once: a thread each."""
NAMES_MAX = 256
"""Names that are kept. A job has a few coordinators, and a store 64."""
AGAIN_S = 1.0
"""Pause between two look-ups of a name, whether it is known or not."""
LOOPBACKS = ("127.0.0.1", "::1")
_NO_SUCH_NAME = frozenset(
    getattr(socket, name, socket.EAI_NONAME)  # some C libraries have but the first
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY")
)


class Unresolved(OSError):
    """No address of a name is known: one line that says why, and what to do."""

    def __init__(self, text: str, *, is_slow: bool = False) -> None:
        """Keep what happened; `is_slow`: the look-up still runs."""
        super().__init__(text)
        self.is_slow = is_slow


class Found(NamedTuple):
    """What the resolver knows of a name."""

    addresses: tuple[str, ...]
    """At least one; the best first, as RFC 6724 orders them. IPv6 may have a zone."""
    full_names: frozenset[str] = frozenset()
    """Canonical names, if there are any."""


class _Name:
    """One name: what is known of it, and the look-up that is under way."""

    def __init__(self) -> None:
        self.found: Found | None = None
        self.problem = ""
        """Why the last look-up that has ended found nothing."""
        self.look_up: Future[Found] | None = None
        self.ended_s = -math.inf
        """When the last look-up ended."""


_lock = threading.Lock()
_names: dict[str, _Name] = {}
"""Those that were asked for last are at the end."""


def find(host: str, limit_s: float = LOOK_UP_S_MAX) -> Found:
    """Return the addresses of a host. Blocks, within the limit, while none is known.

    Raises:
        Unresolved: none is known.
    """
    begun = read_literal(host) or _begin(host)
    if isinstance(begun, Found):
        return begun
    name, look_up = begun
    try:
        return look_up.result(limit_s)
    except TimeoutError:
        raise _slow(host, name) from None


async def find_soon(host: str, limit_s: float = LOOK_UP_S_MAX) -> Found:
    """Return the same without blocking the event loop."""
    begun = read_literal(host) or _begin(host)
    if isinstance(begun, Found):
        return begun
    name, look_up = begun
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(look_up)
    except TimeoutError:
        raise _slow(host, name) from None


@cache
def find_full_name(limit_s: float = LOOK_UP_S_MAX) -> str:
    """Return `socket.getfqdn()`, or the short name of this host if that is not known in time."""
    look_up = Future[str]()
    try:
        threading.Thread(
            target=lambda: look_up.set_result(socket.getfqdn()), name="own name", daemon=True
        ).start()
        return look_up.result(limit_s)
    except (RuntimeError, TimeoutError):  # no thread can start, or the name server is silent
        return socket.gethostname()


def connect(
    host: str, port: int, limit_s: float, look_up_s: float = LOOK_UP_S_MAX
) -> socket.socket:
    """Return a connection to the first address of a host that accepts one; blocks.

    Args:
        host: a name or an address.
        port: of TCP.
        limit_s: for the connection to each address.
        look_up_s: for the look-up before it.

    Raises:
        OSError: there is none.
    """
    error = OSError()
    for address in find(host, look_up_s).addresses:
        try:
            return socket.create_connection((address, port), limit_s)
        except OSError as failed:
            error = failed
    raise error


async def open_connection(
    host: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the same for the event loop, which it does not block; without a limit."""
    error = OSError()
    for address in (await find_soon(host)).addresses:
        try:
            return await asyncio.open_connection(address, port)
        except OSError as failed:
            error = failed
    raise error


def read_literal(host: str) -> Found | None:
    """Return an address that needs no look-up; None: it is a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    return Found((host,))


def _begin(host: str) -> Found | tuple[_Name, Future[Found]]:
    """Look a name up, unless that is under way, or has just ended.

    Returns what is known, or what to wait for.

    Raises:
        Unresolved: the look-up that has just ended found nothing.
    """
    with _lock:
        name = _names.pop(host, None) or _Name()
        _names[host] = name
        look_up = name.look_up
        is_fresh = time.monotonic() - name.ended_s < AGAIN_S
        if look_up is None and not is_fresh:
            look_up = _start(host, name)
        if len(_names) > NAMES_MAX:
            del _names[next(one for one in _names if _names[one].look_up is None)]
        if name.found is not None:
            return name.found
        if look_up is None:
            raise Unresolved(name.problem)
        return name, look_up


def _start(host: str, name: _Name) -> Future[Found]:
    """Start a thread that looks a name up; the lock is held."""
    look_up = Future[Found]()
    look_up.set_running_or_notify_cancel()  # one that waits no longer does not cancel it
    under_way = sum(one.look_up is not None for one in _names.values())
    try:
        if under_way >= LOOK_UPS_MAX:
            raise RuntimeError(f"{under_way} other names are being looked up")
        threading.Thread(
            target=_serve, args=(host, name, look_up), name="host name", daemon=True
        ).start()
    except RuntimeError as error:  # or a limit of the machine or a cgroup is reached
        look_up.set_exception(Unresolved(f"{host} cannot be resolved now: {error}"))
        return look_up
    name.look_up = look_up
    return look_up


def _serve(host: str, name: _Name, look_up: Future[Found]) -> None:
    found, problem, is_unknown = None, "", False
    try:
        found = look_up_now(host)
    except socket.gaierror as error:
        is_unknown = error.errno in _NO_SUCH_NAME
        problem = _describe(host, error, is_unknown)
    except UnicodeError:
        is_unknown = True
        problem = f"{host} cannot be resolved: it cannot be a host name; look for a typing error"
    except OSError as error:
        problem = f"{host} cannot be resolved: {error.strerror or error}"
    with _lock:
        if found is not None or is_unknown:
            name.found = found
        name.problem, name.look_up, name.ended_s = problem, None, time.monotonic()
    if found is None:
        look_up.set_exception(Unresolved(problem))
    else:
        look_up.set_result(found)


def look_up_now(host: str) -> Found:
    """Ask the resolver of the system. Blocks as long as it does.

    Raises:
        OSError: it has no answer.
        UnicodeError: the text cannot be a name.
    """
    # Text would load the codec for international names, which is seldom needed.
    name = host.encode() if host.isascii() else host
    flags = socket.AI_CANONNAME
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
    except socket.gaierror:
        if host != "localhost":
            raise
        return Found(LOOPBACKS)  # RFC 6761: its hosts file need not have it
    addresses = dict.fromkeys(str(entry[4][0]) for entry in entries)
    return Found(tuple(addresses), frozenset(entry[3] for entry in entries if entry[3]))


def _describe(host: str, error: socket.gaierror, is_unknown: bool) -> str:
    if is_unknown:
        return f"{host} cannot be resolved: is it spelled right?"
    if error.errno == socket.EAI_AGAIN:
        return f"{host} cannot be resolved: no name server answers; see /etc/resolv.conf"
    return f"{host} cannot be resolved: {error.strerror}"


def _slow(host: str, name: _Name) -> Unresolved:
    before = f"; before: {name.problem}" if name.problem else ""
    text = f"{host} is not resolved yet: the name server is slow or silent; see /etc/resolv.conf"
    return Unresolved(f"{text}{before}", is_slow=True)


def forget() -> None:
    """Forget all names, and every look-up that is under way."""
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _names.clear()


os.register_at_fork(after_in_child=forget)
