"""`rallypoint context`, and which coordinator a command asks."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rallypoint.cli.operator import app
from rallypoint.cli.operator.common import Common
from rallypoint.cli.operator.connection import choose_access, choose_target
from rallypoint.cli.operator.contexts import (
    Context,
    Contexts,
    contexts_path,
    read_contexts,
    write_contexts,
)
from rallypoint.cli.operator.failures import CommandFailed


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's folder of settings, which does not exist yet."""
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    for name in ("RALLYPOINT_COORDINATOR", "RALLYPOINT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return folder


def run(*words: str) -> int:
    return app.main("context", words)


def test_contexts_are_saved_chosen_and_deleted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first is the current one, until another is chosen or it is deleted."""
    assert run("set", "prod", "-c", "head1,head2:7", "--tls-ca", "ca.pem") == 0
    assert run("set", "dev", "-c", "localhost") == 0
    assert run("use", "dev") == 0
    assert run("list", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert run("delete", "dev") == 0
    assert run("list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]

    assert [(one["name"], one["current"]) for one in found] == [("dev", True), ("prod", False)]
    assert list(found[1]) == ["name", "current", "coordinator", "tls_ca"]
    assert found[1]["tls_ca"] == os.path.abspath("ca.pem")
    assert lines == [
        ["CURRENT", "NAME", "COORDINATOR", "TLS", "TOKEN", "FILE"],
        ["prod", "head1:50051,head2:7", "yes", "-"],
    ]


def test_file_is_private(home: Path) -> None:
    """It says where tokens are; nothing else is left beside it."""
    run("set", "prod", "-c", "head")
    run("set", "prod", "--token-file", "token")
    file = home / "rallypoint" / "contexts.toml"

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [*file.parent.iterdir()] == [file]


def test_what_is_left_out_stays(home: Path) -> None:
    """Of a context that exists."""
    run("set", "prod", "-c", "head", "--tls")
    run("set", "prod", "--tls-server-name", "coordinator.internal")

    assert read_contexts(contexts_path(os.environ)).contexts == {
        "prod": Context(coordinator="head:50051", tls=True, tls_server_name="coordinator.internal")
    }


@pytest.mark.parametrize("text", ['a "quote" \\ and a\ttab', "\x7f\x00 ü 漢", "C:\\x"])
def test_any_text_is_kept(tmp_path: Path, text: str) -> None:
    """What is written reads as it was."""
    saved = Contexts("a", {"a": Context(coordinator=text, tls=True, token_file=text)})
    write_contexts(tmp_path / "x" / "contexts.toml", saved)

    assert read_contexts(tmp_path / "x" / "contexts.toml") == saved


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("use", "prdo"), 3, "use: error: there is no context 'prdo'; did you mean prod?"),
        (("delete", "x"), 3, "delete: error: there is no context 'x'; see rallypoint context list"),
        (("set", "new"), 2, "set: error: a new context needs a coordinator: add -c HOST[:PORT]"),
        (("set", "a b", "-c", "x"), 2, "set: error: 'a b' is not a name for a context"),
        (("set", "new", "-c", "a b"), 2, "set: error: --coordinator: 'a b' is not HOST:PORT"),
        ((), 2, "error: no command given: list, use, set, show or delete (see rallypoint context"),
        (("usse", "prod"), 2, "error: unknown command 'usse'; did you mean use?"),
    ],
)
def test_errors_say_what_to_do(
    home: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    code: int,
    text: str,
) -> None:
    """In one line, with the command that was called."""
    run("set", "prod", "-c", "head")
    capsys.readouterr()

    assert run(*words) == code
    found = capsys.readouterr().err
    assert found.startswith("rallypoint context") and text in found and found.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["current =", "[contexts.a]\n", "[contexts.a]\ncoordinator = 7\n", "x = 1\n"]
)
def test_damaged_file_is_named(home: Path, content: str) -> None:
    """With what is wrong in it."""
    file = home / "rallypoint" / "contexts.toml"
    file.parent.mkdir(parents=True)
    file.write_text(content)

    with pytest.raises(CommandFailed, match=r"contexts\.toml: .*; correct it, or delete it"):
        choose_target(Common(), os.environ)


@pytest.mark.parametrize(
    ("common", "variables", "expected"),
    [
        (Common(), {}, "prod:1"),
        (Common(), {"RALLYPOINT_CONTEXT": "dev"}, "dev:2"),
        (Common(), {"RALLYPOINT_COORDINATOR": "three:3"}, "three:3"),
        (Common(), {"RALLYPOINT_COORDINATOR": "three:3", "RALLYPOINT_CONTEXT": "dev"}, "three:3"),
        (Common(context="dev"), {"RALLYPOINT_COORDINATOR": "three:3"}, "dev:2"),
        (Common(coordinator="four:4", context="dev"), {}, "four:4"),
    ],
)
def test_an_option_wins_over_a_variable_over_the_current_context(
    home: Path, common: Common, variables: dict[str, str], expected: str
) -> None:
    """Each names another coordinator here."""
    run("set", "prod", "-c", "prod:1")
    run("set", "dev", "-c", "dev:2")

    assert choose_target(common, {**os.environ, **variables}).endpoints == expected


def test_without_anything_the_own_host_is_asked(home: Path) -> None:
    """At the port of a coordinator."""
    assert choose_target(Common(), os.environ).endpoints == "localhost:50051"


def test_a_token_of_the_environment_reaches_no_saved_coordinator(home: Path) -> None:
    """A context has its own; an option counts in both cases."""
    environment = {**os.environ, "RALLYPOINT_TOKEN": "secret", "RALLYPOINT_TLS_CA": "env.pem"}
    run("set", "prod", "-c", "prod:1", "--tls-ca", "/prod.pem")
    saved, named = Common(), Common(coordinator="x", tls_server_name="name")
    of_context = choose_access(saved, choose_target(saved, environment), environment)
    of_option = choose_access(named, choose_target(named, environment), environment)

    assert (of_context.token, of_context.ca_file) == ("", "/prod.pem")
    assert (of_option.token, of_option.ca_file, of_option.server_name) == (
        "secret",
        "env.pem",
        "name",
    )
