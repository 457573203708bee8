"""The command `rallypoint relay`: what it says about its protection, and about its coordinator."""

from __future__ import annotations

import pytest

from support.processes.commands import SCRIPTS
from support.processes.world import World

TOKEN = "a-token-with-every-role"
RELAY = (str(SCRIPTS / "rallypoint"), "relay", "--coordinator=nowhere.invalid:50051", "--port=0")


@pytest.mark.parametrize(
    ("flags", "token", "warned"),
    [
        ((), "", ["unprotected"]),
        ((), TOKEN, ["unencrypted"]),
        (("--host=127.0.0.1",), "", []),
    ],
)
def test_open_relay_says_so(
    world: World, flags: tuple[str, ...], token: str, warned: list[str]
) -> None:
    """As a coordinator does, in one line with what to do; not where only its own host reaches it.

    A name that cannot be resolved is called that.
    """
    relay = world.start("relay", (*RELAY, *flags), {"RALLYPOINT_TOKEN": token} if token else {})
    problem = relay.wait_event("coordinator_not_reached")
    lines = relay.events("unprotected", "unencrypted")

    assert warned == [line["event"] for line in lines]
    assert all("--tls-cert" in line["hint"] for line in lines)
    assert problem["why"] == "nowhere.invalid cannot be resolved: is it spelled right?"
