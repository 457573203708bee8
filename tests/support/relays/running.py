"""Relays as processes."""

from __future__ import annotations

from rallypoint.v1 import job_pb2
from support.processes.commands import SCRIPTS, Command
from support.processes.jobs import Jobs
from support.processes.world import World


def start_relay(world: World, coordinator: str, port: int = 0, *flags: str) -> tuple[Command, str]:
    """Start a relay; return it and its `host:port` once it reaches a coordinator."""
    argv = (
        *(str(SCRIPTS / "rallypoint"), "relay", f"--coordinator={coordinator}"),
        *("--host=127.0.0.1", f"--port={port}", *flags),
    )
    relay = world.start("relay", argv)
    address = relay.stdout_line().removeprefix("listening on ")
    relay.wait_event("coordinator_reached")
    return relay, address


def direct(world: World, address: str) -> Jobs:
    """Let agents of the test go to `address` from now on; return what asks the coordinator."""
    jobs = Jobs(world.target)
    world.target = address
    world.jobs.channel.close()
    world.jobs = Jobs(address.partition(",")[0])
    return jobs


def is_back(job: job_pb2.Job) -> bool:
    """Return whether all nodes of a running round are attached."""
    return bool(job.nodes) and all(node.attached for node in job.nodes)
