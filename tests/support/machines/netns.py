"""Separate hosts on one machine: network namespaces, and between them a switch that misbehaves.

Each host has one TUN device, moved into its namespace; whatever it sends comes out here as IP
packets, which a thread passes on, drops, or holds back. The host without a namespace is this
machine itself, so that the test can talk to a coordinator there. Nothing of it needs more of the
kernel than TUN and namespaces (netem and iptables are often missing), and every fault can be of one
direction only.

Everything ends with the network: the devices with their descriptors, the namespaces by name.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import random
import secrets
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Self

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 65_536
_SUBNETS = 254
"""As many networks can be there at once."""
_HERE = ""
"""The namespace of this process."""


class NotPermitted(Exception):
    """This machine does not permit namespaces or devices; the text says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host."""

    namespace: str
    address: str
    fd: int
    """Descriptor of its device: packets of the host are read here, and written here to it."""

    def prefix(self) -> list[str]:
        """Return the words before a command line that run it on this host."""
        return ["ip", "netns", "exec", self.namespace] if self.namespace else []


class Network:
    """A few hosts and the switch between them."""

    def __init__(self, *names: str, seed: int = 0) -> None:
        """Build hosts of these names, and one called "here" that is this machine.

        Raises:
            NotPermitted: when this machine does not allow it.
        """
        if shutil.which("ip") is None:
            raise NotPermitted("there is no `ip` command (package iproute2)")
        self._token = secrets.token_hex(3)
        self._subnet, self._claim = _claim_subnet()
        self._random = random.Random(seed)
        self._cuts: set[tuple[str, str]] = set()
        self._delay_s = 0.0
        self._loss = 0.0
        self._late: list[tuple[float, int, bytes, str]] = []
        self._taken = 0
        self._wake_fd, self._end_fd = os.pipe()
        self.hosts: dict[str, Host] = {}
        self._thread = threading.Thread(target=self._forward, name="switch")
        try:
            for name in ("here", *names):
                self._add(name)
        except (OSError, subprocess.CalledProcessError) as error:
            os.close(self._end_fd)
            self._remove()
            why = getattr(error, "stderr", "") or str(error)
            raise NotPermitted(f"no namespaces here: {why.strip()}") from error
        self._by_address = {host.address: name for name, host in self.hosts.items()}
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._end_fd)
        self._thread.join()
        self._remove()

    def cut(self, source: str, target: str) -> None:
        """Drop whatever `source` sends to `target`."""
        self._cuts = self._cuts | {(source, target)}

    def heal(self) -> None:
        """Drop no more packets."""
        self._cuts = set()

    def worsen(self, *, delay_s: float, loss: float) -> None:
        """Delay every packet this long, and drop this share (0 to 1) of all."""
        self._delay_s, self._loss = delay_s, loss

    def _add(self, name: str) -> None:
        number = len(self.hosts) + 1
        device = f"rp{self._token}{number}"
        namespace = _HERE if name == "here" else f"rp{self._token}-{name}"
        address = f"{self._subnet}.{number}"
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.hosts[name] = Host(namespace, address, fd)
        request = struct.pack("16sH", device.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(fd, _TUNSETIFF, request)
        inside: list[str] = []
        if namespace:
            _ip("netns", "add", namespace)
            _ip("link", "set", device, "netns", namespace)
            inside = ["-n", namespace]
            _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{address}/24", "dev", device)
        _ip(*inside, "link", "set", device, "up")

    def _remove(self) -> None:
        os.close(self._wake_fd)
        for host in self.hosts.values():
            os.close(host.fd)
            if host.namespace:
                subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True)
        self._claim.close()

    def _forward(self) -> None:
        """Pass packets on until the pipe is closed."""
        fds = [host.fd for host in self.hosts.values()]
        while True:
            wait_s = max(0.0, self._late[0][0] - time.monotonic()) if self._late else None
            ready = select.select([self._wake_fd, *fds], [], [], wait_s)[0]
            if self._wake_fd in ready:
                return
            for fd in ready:
                self._take(os.read(fd, _PACKET_BYTES))
            while self._late and self._late[0][0] <= time.monotonic():
                _, _, packet, target = heapq.heappop(self._late)
                self._give(packet, target)

    def _take(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4:  # the kernel's own words about IPv6
            return
        source, target = (
            self._by_address.get(".".join(map(str, packet[start : start + 4])))
            for start in (12, 16)
        )
        if source is None or target is None or (source, target) in self._cuts:
            return
        if self._random.random() < self._loss:
            return
        if self._delay_s:
            self._taken += 1  # keeps the order of packets of the same instant
            due_s = time.monotonic() + self._delay_s
            heapq.heappush(self._late, (due_s, self._taken, packet, target))
        else:
            self._give(packet, target)

    def _give(self, packet: bytes, target: str) -> None:
        try:
            os.write(self.hosts[target].fd, packet)
        except BlockingIOError:
            pass  # its queue is full: as any switch, we drop


def _claim_subnet() -> tuple[str, socket.socket]:
    """Return the first three numbers of a network's addresses, and what keeps them from others.

    With the addresses of another network that is there, this machine would reach that one's hosts.
    The name of a socket is free again when its process ends, and as local as an address is.
    """
    first = secrets.randbelow(_SUBNETS)
    for number in range(first, first + _SUBNETS):
        # 198.18.0.0/15 is for tests of networks (RFC 2544): no real one is hidden by it.
        subnet = f"198.18.{number % _SUBNETS + 1}"
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0rallypoint-tests {subnet}")
        except OSError:
            claim.close()
        else:
            return subnet, claim
    raise RuntimeError("all addresses for tests are in use")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
