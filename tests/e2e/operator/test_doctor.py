"""`rallypoint doctor` on broken set-ups, looked at in terminals of two widths.

If a transcript differs on purpose: PYTHONPATH=tests python tests/support/operator/consultations.py
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest

from rallypoint.cli.operator import app
from rallypoint.cli.operator.doctor.command import describe_source
from support.access.authority import Authority
from support.operator import consultations
from support.operator.broken import FILES_LIMIT, SET_UPS
from support.processes.world import World

WRONG = {
    "wrong-name": ("name", "problem"),
    "nothing-listens": ("connection", "problem"),
    "web-server": ("listener", "problem"),
    "other-program": ("listener", "problem"),
    "tls-expected": ("TLS", "problem"),
    "tls-unexpected": ("TLS", "problem"),
    "foreign-authority": ("TLS", "problem"),
    "expired-certificate": ("TLS", "problem"),
    "other-host": ("TLS", "problem"),
    "client-without-certificate": ("TLS", "problem"),
    "no-token": ("token", "problem"),
    "wrong-token": ("token", "problem"),
    "wrong-clock": ("clock", "problem"),
}
"""Of each set-up that is broken on the way to the coordinator: the check that says so."""


@pytest.mark.parametrize("name", WRONG)
def test_one_check_finds_what_is_wrong(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing after it is blamed, and the exit code says that there is a problem."""
    monkeypatch.chdir(tmp_path)
    with SET_UPS[name](tmp_path) as options:
        assert app.main("doctor", [*options, "-o", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    ours = [one for one in answer["findings"] if one["about"] != "this host"]

    (found,) = (one for one in ours if one["level"] == "problem")
    assert (found["check"], found["level"]) == WRONG[name]
    assert found["advice"]
    assert found == ours[-1]


def test_a_coordinator_that_is_well_has_no_problem(world: World) -> None:
    """A real one; the other findings are about this host."""
    done = world.run(consultations.RALLYPOINT, "doctor", "-c", world.target, "-o", "json")
    findings = json.loads(done.stdout)["findings"]
    checks = [one["check"] for one in findings if one["about"] == world.target]

    assert checks == ["name", "connection", "TLS", "coordinator", "token", "version", "clock"]
    assert [
        one for one in findings if one["about"] == world.target and one["level"] == "problem"
    ] == []


@pytest.mark.long
def test_a_coordinator_with_tls_and_roles_says_who_calls(tmp_path: Path) -> None:
    """A real one: the holder of a token, its role and jobs, and how a change is refused."""
    pair = Authority(tmp_path).issue("head", ["localhost", "127.0.0.1"], days=90)
    auth, token = tmp_path / "auth.toml", tmp_path / "view.token"
    token.write_text("read-only-token")
    digest = sha256(b"read-only-token").hexdigest()
    auth.write_text(
        f'[[token]]\nname = "ann"\nrole = "viewer"\nsha256 = ["{digest}"]\njobs = ["train-*"]\n'
    )
    for path in (auth, token):
        path.chmod(0o600)
    flags = ("--tls-cert", pair.cert, "--tls-key", pair.key, "--auth", str(auth))
    with World(tmp_path, "localhost:1") as world:
        world.coordinator(0, *flags, "--require-auth")
        options = ["-c", world.target, "--tls-ca", "ca.pem", "--token-file", "view.token"]
        done = world.run(consultations.RALLYPOINT, "doctor", *options)
        refused = world.run(consultations.RALLYPOINT, "cancel", "train-1", *options)

    assert done.returncode == 0, done.stdout
    shown = " ".join(done.stdout.split())  # as wide as the variable COLUMNS says, if it is set
    assert "ok TLS the coordinator's certificate is valid for 90 days more" in shown
    assert "by access token as 'ann': viewer, for the jobs train-*" in shown
    assert (refused.returncode, refused.stderr) == (
        77,
        "rallypoint cancel: error: 'ann' is viewer: this call needs the role operator; use the "
        "token of such a role: --token-file FILE\n",
    )


@pytest.mark.parametrize(
    ("source", "note"),
    [
        ("", "nothing names another one: -c HOST:PORT"),
        ("--coordinator", ""),
        ("RALLYPOINT_COORDINATOR", "from RALLYPOINT_COORDINATOR"),
        ("context prod", "from context prod"),
    ],
)
def test_it_says_why_this_coordinator_is_checked(source: str, note: str) -> None:
    """Unless the user has just named it."""
    assert describe_source(source) == note


def test_a_host_alone_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """No coordinator is asked then."""
    app.main("doctor", ["--local", "-c", "no-such-host.invalid", "-o", "json"])
    answer = json.loads(capsys.readouterr().out)

    assert {one["about"] for one in answer["findings"]} == {"this host"}
    assert [one["check"] for one in answer["findings"]] == [
        "open files",
        "shared memory",
        "ports",
        "kernel",
        "processes",
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", SET_UPS)
def test_what_a_terminal_shows(name: str, tmp_path: Path) -> None:
    """Lines of whole words, as wide as the terminal; what to do is below what is wrong."""
    expected = (consultations.FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    text = consultations.transcribe(name, tmp_path)

    assert text == expected
    narrow = text.partition("# 200 columns")[0].splitlines()
    assert [line for line in narrow if len(line) > 80 or line != line.rstrip()] == []


@pytest.mark.long
def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    """The words are the same without."""
    folders = [tmp_path / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
    code, coloured = consultations.consult("wrong-name", folders[0], 80)
    also, plain = consultations.consult("wrong-name", folders[1], 80, NO_COLOR="1")

    assert (code, also) == (1, 1)
    assert "\x1b[1;31mproblem\x1b[0m" in coloured
    assert not re.search(r"\x1b\[[0-9;]*m", plain)
    assert consultations.normalize("", coloured) == consultations.normalize("", plain)


def test_every_transcript_is_of_a_set_up() -> None:
    """And the low limit is one of them."""
    written = {path.stem for path in consultations.FOLDER.glob("*.txt")}

    assert written == {*SET_UPS}
    assert {*SET_UPS} == {*WRONG, *FILES_LIMIT, "well"}
