"""Notices that others do not reach this coordinator where it says.

A wrong `--advertise` fails no call here: the others send agents and calls to another place. And of
two coordinators with one address, only one is reached, while each owns its share of the jobs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

from rallypoint.base.addresses import first_host
from rallypoint.base.log import get_logger
from rallypoint.base.names import open_connection
from rallypoint.server.etcd.view import Member
from rallypoint.server.fleet.standing import REMIND_S

log = get_logger()

LOOK_S = 10.0
"""Pause between two looks: longer than the lease of a predecessor that was killed."""
CONNECT_S_MAX = 2.0
"""How long a connection to the address may take."""


class Advertised:
    """The address at which others reach this coordinator."""

    def __init__(self, address: str, note_probe: Callable[[], None] = lambda: None) -> None:
        """Find nothing wrong yet with `address`, which is `host:port`.

        `note_probe` is called for each connection that is made to it.
        """
        self._note_probe = note_probe
        self.trouble = ""
        """What is wrong with the address, in one line; empty: nothing is known."""
        self._address = address
        self._seen: set[str] = set()
        """Ids of the members that had this address at the last look."""
        self._remind_s = 0.0

    async def look(self, members: Mapping[str, Member]) -> None:
        """Log what is wrong; `members` are all coordinators of the store by their ids."""
        trouble = self.compare(members)
        if trouble or len(self._seen) < 2:
            self._note(trouble or await self.connect())

    def compare(self, members: Mapping[str, Member]) -> str:
        """Return what is wrong when several members have had this address at two looks in a row.

        At one look, the other may be a predecessor on this address whose lease has not ended.
        """
        seen = {name for name, member in members.items() if member.address == self._address}
        lasting, self._seen = seen & self._seen, seen
        if len(lasting) < 2:
            return ""
        return (
            f"{len(lasting)} coordinators advertise {self._address}, so not all of them are"
            " reached: give each another --advertise"
        )

    async def connect(self) -> str:
        """Return why no connection to the address can be made; empty: it can."""
        host, _, port = self._address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                _, writer = await open_connection(first_host(f"{host}:{port}"), int(port))
        except TimeoutError:
            why = f"no answer within {CONNECT_S_MAX:g} s"
        except OSError as error:
            is_of_system = error.errno is not None and error.errno > 0
            why = os.strerror(error.errno or 0) if is_of_system else str(error.strerror or error)
        else:
            writer.close()
            self._note_probe()
            return ""
        return (
            f"this coordinator does not reach itself at {self._address}, which it advertises"
            f" ({why}): if others do not either, correct --advertise"
        )

    def _note(self, trouble: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if trouble and (trouble != self.trouble or now_s >= self._remind_s):
            log.warning("advertised_address_wrong", why=trouble)
            self._remind_s = now_s + REMIND_S
        elif self.trouble and not trouble:
            log.info("advertised_address_right")
        self.trouble = trouble
