"""A node that is alone, where loopback has addresses of one family, or none."""

from __future__ import annotations

import subprocess

import pytest

from support.processes.world import World

WORKER = ("--no-python", "sh", "-c", "echo at $MASTER_ADDR")
IPV6_ALONE = "ip link set lo up && ip address del 127.0.0.1/8 dev lo"
IPV4_ALONE = "ip link set lo up && ip address del ::1/128 dev lo"
NOTHING = "ip link set lo up && ip address flush dev lo"


def run_with(world: World, loopback: str) -> subprocess.CompletedProcess[str]:
    """Run a job of one node on a host whose loopback interface a command has set up."""
    namespace = ("unshare", "--net", "sh", "-c")
    if world.run(*namespace, loopback).returncode:
        pytest.skip("this machine permits no network namespaces, or has no IPv6")
    line = world.standalone("--log-level=warning", script=WORKER)
    return world.run(*namespace, f'{loopback} && exec "$@"', "sh", *line)


@pytest.mark.parametrize(
    ("loopback", "address"), [(IPV6_ALONE, "::1"), (IPV4_ALONE, "127.0.0.1")], ids=["ipv6", "ipv4"]
)
def test_node_alone_uses_the_family_that_there_is(
    world: World, loopback: str, address: str
) -> None:
    """For its coordinator and its workers."""
    done = run_with(world, loopback)

    assert (done.returncode, done.stdout) == (0, f"at {address}\n")
    assert "foreign_address_used" not in done.stderr


def test_host_without_loopback_is_told_in_a_line(world: World) -> None:
    """Not with a traceback, and not as a bug."""
    done = run_with(world, NOTHING)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("node-agent: error: the built-in coordinator cannot listen on 127.0.0.1")
    assert line.endswith("check the loopback interface: ip address show lo")
