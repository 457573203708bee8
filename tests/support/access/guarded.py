"""A protected coordinator as a process, and what its agents, workers and clients have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from rallypoint.wire.access import Access
from support.access.authority import Authority, Pair
from support.access.protected import (
    AGENT,
    HOST,
    OPERATOR,
    OTHER_AGENT,
    RELAY,
    entry,
    write_rules,
)
from support.processes.commands import COORDINATOR, Command
from support.processes.world import NEW, World


class Guarded(Struct):
    """A protected coordinator, and what its agents and clients have."""

    world: World
    folder: Path
    authority: Authority
    server: Pair
    node: Pair
    person: Pair
    command: Command | None = None

    def start(self, port: int = 0) -> Command:
        """Start the coordinator, with a journal."""
        argv = (
            *(COORDINATOR, f"--host={HOST}", f"--port={port}", *NEW),
            f"--state=sqlite:{self.folder / 'journal.sqlite'}",
            f"--tls-cert={self.server.cert}",
            f"--tls-key={self.server.key}",
            f"--tls-client-ca={self.folder / 'clients.pem'}",
            f"--auth={self.folder / 'auth.toml'}",
        )
        self.command = self.world.start("coordinator", argv)
        self.world.target = self.command.stdout_line().removeprefix("listening on ")
        return self.command

    def restart(self) -> None:
        """Kill the coordinator, and start it again at the same port."""
        assert self.command is not None
        self.command.kill()
        self.start(int(self.world.target.rpartition(":")[2]))

    def let_in(self, agents: tuple[str, ...], operators: tuple[str, ...]) -> None:
        """Replace the auth file: these tokens count."""
        rules = entry("trainer", "agent", *agents) + entry("ann", "operator", *operators)
        rules += entry("other trainer", "agent", OTHER_AGENT, more='jobs = ["other*"]')
        rules += entry("rack", "relay", RELAY)
        write_rules(self.folder / "auth.toml", rules)

    def trust(self, who: str, *authorities: Authority) -> None:
        """Replace the authorities in a file: of `servers.pem` or `clients.pem`."""
        together = b"".join(Path(one.ca).read_bytes() for one in authorities)
        fresh = self.folder / f"{who}.new"
        fresh.write_bytes(together)
        fresh.replace(self.folder / f"{who}.pem")

    def write_token(self, who: str, token: str) -> None:
        fresh = self.folder / f"{who}.new"
        fresh.write_text(f"{token}\n")
        fresh.replace(self.folder / f"{who}.token")

    def access(self) -> Access:
        """Return the access of an operator."""
        return Access(
            ca_file=str(self.folder / "servers.pem"),
            cert_file=self.person.cert,
            key_file=self.person.key,
            token_file=str(self.folder / "person.token"),
        )

    def variables(self) -> dict[str, str]:
        """Return the variables of a node, for launchers without our flags."""
        return {
            "RALLYPOINT_TLS_CA": str(self.folder / "servers.pem"),
            "RALLYPOINT_TLS_CERT": self.node.cert,
            "RALLYPOINT_TLS_KEY": self.node.key,
            "RALLYPOINT_TOKEN": AGENT,
        }

    def flags(self) -> tuple[str, ...]:
        """Return the flags of an agent."""
        return (
            f"--tls-ca={self.folder / 'servers.pem'}",
            f"--tls-cert={self.node.cert}",
            f"--tls-key={self.node.key}",
            f"--token-file={self.folder / 'node.token'}",
        )


@contextmanager
def guarded(folder: Path) -> Iterator[Guarded]:
    """Serve while the context is open."""
    authority = Authority(folder / "a")
    with World(folder, "localhost:1") as world:
        made = Guarded(
            world,
            folder,
            authority,
            authority.issue("coordinator", [HOST]),
            authority.issue("node"),
            authority.issue("person"),
        )
        made.trust("servers", authority)
        made.trust("clients", authority)
        made.let_in((AGENT,), (OPERATOR,))
        made.write_token("node", AGENT)
        made.write_token("person", OPERATOR)
        made.write_token("relay", RELAY)
        made.start()
        yield made
