"""What torchrun says when something is wrong with its coordinator or its parameters."""

from __future__ import annotations

import pytest

from support.processes.world import OBEDIENT, World
from support.torchrun.plugin import TORCHRUN, torchrun

pytestmark = pytest.mark.long  # torchrun imports torch, which takes seconds


@pytest.mark.nightly
def test_wrong_endpoint(world: World) -> None:
    """It gives up after `read_timeout`, and says what to do."""
    world.target = "127.0.0.1:1"
    launcher = torchrun(world, "a", conf="read_timeout=1")

    assert launcher.wait() == 1
    last = launcher.stderr().splitlines()[-1]
    assert "RendezvousConnectionError: no coordinator answered for 1 s at 127.0.0.1:1" in last
    assert "check --rdzv-endpoint" in last


@pytest.mark.nightly
def test_too_few_nodes(world: World) -> None:
    """It gives up after `join_timeout`, and says how many were missing."""
    launcher = torchrun(world, "a", nnodes="2", conf="join_timeout=8")

    assert launcher.wait() == 1
    last = launcher.stderr().splitlines()[-1]
    assert "RendezvousTimeoutError" in last
    # The coordinator's verdict, or, where that comes late, what the job has waited for.
    assert "2 are required" in last or "1 of 2 required nodes" in last


def test_other_parameters(world: World) -> None:
    """A node that disagrees with the job is refused, and says on what."""
    first = torchrun(world, "a", nnodes="2")
    first.wait_text("1 of 2 required nodes are ready")
    second = torchrun(world, "b", nnodes="2:3")

    assert second.wait() == 1
    assert "RendezvousStateError" in second.stderr()
    assert "--nnodes is 2:2 there and 2:3 here" in second.stderr()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--rdzv-id=j",), "--rdzv-endpoint is missing"),
        (("--rdzv-endpoint=localhost", "--nnodes=2"), "--rdzv-id is missing"),
        (
            ("--rdzv-endpoint=localhost", "--rdzv-id=j", "--rdzv-conf=join_timeout=x"),
            "join_timeout: 'x' is not a number of seconds",
        ),
    ],
)
def test_wrong_flags(world: World, flags: tuple[str, ...], text: str) -> None:
    """The last line names the flag."""
    done = world.run(TORCHRUN, "--rdzv-backend=rallypoint", *flags, OBEDIENT)

    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]
