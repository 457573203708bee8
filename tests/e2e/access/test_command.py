"""The command `coordinator` with and without protection: what it says, and when it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.access.authority import Authority
from support.access.protected import AGENT, write_rules
from support.processes.commands import COORDINATOR
from support.processes.world import World

EVERY = "a-token-with-every-role"
FREE = (COORDINATOR, "--port=0", "--state=memory")
LOCAL = (*FREE, "--host=127.0.0.1")


def events_of(world: World, *argv: str, token: str = "") -> list[dict[str, str]]:
    """Start a coordinator; return what it says about its protection until it listens."""
    env = {"RALLYPOINT_TOKEN": token} if token else {}
    command = world.start("coordinator", argv, env)
    command.stdout_line()
    command.wait_event("coordinator_started")
    return command.events("unprotected", "unencrypted")


def test_open_coordinator_says_so(world: World) -> None:
    """In one line, with what to do; not where only its own host reaches it."""
    (line,) = events_of(world, *FREE)

    assert ("unprotected", "warning") == (line["event"], line["level"])
    assert "--auth" in line["hint"]
    assert [] == events_of(world, *LOCAL)


def test_tokens_without_tls_are_named(world: World) -> None:
    """Anyone who reads the network could use them."""
    (line,) = events_of(world, *FREE, token=EVERY)

    assert "unencrypted" == line["event"]
    assert [] == events_of(world, *LOCAL, token=EVERY)


def test_required_auth_is_there(world: World, tmp_path: Path) -> None:
    """By a file, by certificates, or by the variable."""
    authority = Authority(tmp_path / "authority")
    pair = authority.issue("coordinator", ["127.0.0.1"])
    tls = (f"--tls-cert={pair.cert}", f"--tls-key={pair.key}")
    auth = f"--auth={write_rules(tmp_path / 'auth.toml')}"

    for more, token in (
        ((auth,), ""),
        ((*tls, f"--tls-client-ca={authority.ca}"), ""),
        ((), EVERY),
    ):
        assert [] == events_of(world, *LOCAL, "--require-auth", *more, token=token)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--tls-cert={cert}", "--tls-key={other}"), "does not belong to the certificate"),
        (("--auth={open}",), "others can read or change"),
        (("--auth={pipe}",), "it is a pipe, not a regular file"),
    ],
)
def test_unusable_file_is_one_line(
    world: World, tmp_path: Path, flags: tuple[str, ...], problem: str
) -> None:
    """Exit code 2, at once."""
    authority = Authority(tmp_path / "authority")
    pair, other = (authority.issue("coordinator", ["127.0.0.1"]) for _ in range(2))
    opened, pipe = Path(write_rules(tmp_path / "open.toml")), tmp_path / "pipe"
    opened.chmod(0o644)
    os.mkfifo(pipe, 0o600)
    names = {"cert": pair.cert, "other": other.key, "open": opened, "pipe": pipe}
    done = world.run(*LOCAL, *(flag.format(**names) for flag in flags))

    assert 2 == done.returncode
    (line,) = done.stderr.splitlines()
    assert line.startswith("coordinator: error: ")
    assert problem in line


def test_short_token_is_refused(world: World) -> None:
    """It could be guessed; the line does not show it."""
    done = world.run(*LOCAL, env={"RALLYPOINT_TOKEN": "secret"})

    assert 2 == done.returncode
    assert "fewer than 16 characters" in done.stderr
    assert "secret" not in done.stderr


def test_token_never_leaves(world: World, tmp_path: Path) -> None:
    """A node joins with the token of its file: no log, command line or worker has it."""
    rules = write_rules(tmp_path / "auth.toml")
    coordinator = world.coordinator(0, f"--auth={rules}", "--startup-window=0")
    token = tmp_path / "token"
    token.write_text(AGENT, encoding="ascii")
    agent = world.agent("a", f"--token-file={token}")
    (worker,) = world.mailbox.workers(1)
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (agent.pid, worker.pid)]
    inherited = Path(f"/proc/{worker.pid}/environ").read_bytes()
    worker.tell("exit", "0")
    assert 0 == agent.wait()
    (joined,) = coordinator.events("audit")

    assert ("trainer", "Session", "allowed") == (
        joined["caller"],
        joined["method"],
        joined["outcome"],
    )
    shown = (*lines, inherited, coordinator.stderr().encode(), agent.stderr().encode())
    assert not any(AGENT.encode() in text for text in shown)
    assert b"RALLYPOINT_TOKEN" not in inherited
