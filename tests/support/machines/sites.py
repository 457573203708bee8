"""Machines with the networks, names and routes that a test gives them, cabled to switches.

`netns` has one network, whose packets a test can lose; here a machine has several, of both
families, and the kernel's own switches. All is in namespaces: nothing of it is seen outside.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.machines.netns import NotPermitted


@dataclass(frozen=True, slots=True)
class Lan:
    """A network that each machine has an interface to."""

    prefix: str
    """All but the number of the machine, such as "198.18.1." or "fd00:1::"."""
    is_parted: bool = False
    """Machines do not reach each other on it, only what is behind it."""

    def address(self, number: int) -> str:
        """Return the address of a machine, from 1."""
        return f"{self.prefix}{number}"


@dataclass(frozen=True, slots=True)
class Site:
    """How machines are cabled, and what they call the first one, node1."""

    lans: tuple[Lan, ...]
    """eth0, eth1, …"""
    own_name: str
    """Address that node1 has for its own name."""
    name: str
    """Address that the others have for it."""
    gateway: str = ""
    """Of the default route; empty: there is none."""


class Machines:
    """Machines called node1, node2, …"""

    def __init__(self, site: Site, count: int) -> None:
        """Build them.

        Raises:
            NotPermitted: when this machine does not allow it.
        """
        if shutil.which("ip") is None:
            raise NotPermitted("there is no `ip` command (package iproute2)")
        token = secrets.token_hex(3)
        self._site = site
        self._switches = f"rp{token}-switches"
        self._machines = [f"rp{token}-node{number}" for number in range(1, count + 1)]
        self._folders = [Path("/etc/netns", machine) for machine in self._machines]
        try:
            self._build()
        except (OSError, subprocess.CalledProcessError) as error:
            self._remove()
            why = getattr(error, "stderr", "") or str(error)
            raise NotPermitted(f"no such machines here: {why.strip()}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def prefix(self, number: int) -> list[str]:
        """Return the words before a command line that run it on a machine, from 1."""
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', f"node{number}")
        return ["ip", "netns", "exec", self._machines[number - 1], *named]

    def _build(self) -> None:
        _ip("netns", "add", self._switches)
        for index in range(len(self._site.lans)):
            _ip("-n", self._switches, "link", "add", f"lan{index}", "type", "bridge")
            _ip("-n", self._switches, "link", "set", f"lan{index}", "up")
        for number, machine in enumerate(self._machines, 1):
            _ip("netns", "add", machine)
            _ip("-n", machine, "link", "set", "lo", "up")
            for index, lan in enumerate(self._site.lans):
                self._cable(machine, number, index, lan)
            if self._site.gateway:
                _ip("-n", machine, "route", "add", "default", "via", self._site.gateway)
            self._name(number)

    def _cable(self, machine: str, number: int, index: int, lan: Lan) -> None:
        port, device = f"port{index}-{number}", f"eth{index}"
        ends = ("type", "veth", "peer", "name", device, "netns", machine)
        _ip("-n", self._switches, "link", "add", port, *ends)
        _ip("-n", self._switches, "link", "set", port, "master", f"lan{index}", "up")
        isolated = ("type", "bridge_slave", "isolated", "on" if lan.is_parted else "off")
        _ip("-n", self._switches, "link", "set", port, *isolated)
        is_ipv6 = ":" in lan.prefix
        address = f"{lan.address(number)}/{64 if is_ipv6 else 24}"
        _ip("-n", machine, "address", "add", address, "dev", device, *("nodad",) * is_ipv6)
        _ip("-n", machine, "link", "set", device, "up")

    def _name(self, number: int) -> None:
        folder = self._folders[number - 1]
        folder.mkdir(parents=True)
        leads_to = self._site.own_name if number == 1 else self._site.name
        lines = ["127.0.0.1 localhost", "::1 localhost", f"{leads_to} node1"]
        if number > 1:
            lines.append(f"{self._site.lans[-1].address(number)} node{number}")
        (folder / "hosts").write_text("".join(f"{line}\n" for line in lines))
        (folder / "resolv.conf").write_text("")

    def _remove(self) -> None:
        for namespace in (*self._machines, self._switches):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True)
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
