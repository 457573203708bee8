"""What an agent says about the program of its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.agent.round.environ import Launch, shown_command
from rallypoint.agent.session import program
from rallypoint.agent.session.program import describe_program, find_name, find_user
from rallypoint.base.limits import COMMAND_LINE_CHARS_MAX
from rallypoint.v1 import agent_service_pb2 as agent_pb2


def describe(script: str, *args: str, is_module: bool = False) -> agent_pb2.Program:
    return describe_program(script, args, is_module=is_module, user="alice", may_differ=False)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train.py", "train.py"),
        ("/home/alice/job 1/train.py", "train.py"),
        ("./app/", "app"),
        ("/dev/shm/train.py", "train.py"),
        ("-", ""),
        ("/dev/stdin", ""),
        ("/dev/fd/63", ""),
        ("/proc/self/fd/5", ""),
        (".", ""),
        ("/usr/bin/python3.11", ""),
        ("bash", ""),
        ("python_train.py", "python_train.py"),
        ("..", ""),
        ("./", ""),
        ("tr\x1bain\udcff.py", "tr\N{REPLACEMENT CHARACTER}ain\N{REPLACEMENT CHARACTER}.py"),
        ("https://host/run/train.py", "train.py"),
        ("x" * 300, "x" * 255),
    ],
)
def test_script_is_known_by_its_base_name(script: str, name: str) -> None:
    """Folders do not count; what has no name gets none."""
    assert name == find_name(script, is_module=False)


@pytest.mark.parametrize("module", ["train", "package.train", "other.train"])
def test_module_is_known_by_its_full_name(module: str) -> None:
    """A module is no script of the same name."""
    assert f"-m {module}" == find_name(module, is_module=True)


def test_command_line_is_quoted_for_a_shell() -> None:
    """A reader can copy the command."""
    assert "train.py --name 'a b'" == describe("train.py", "--name", "a b").command_line
    assert "-m pkg.train -x" == describe("pkg.train", "-x", is_module=True).command_line


def test_arguments_are_not_in_the_command_of_a_worker() -> None:
    """They may be secret: a verdict shows the interpreter and the script."""
    script = Launch("train.py", ("--token", "secret"))
    module = Launch("pkg.train", ("secret",), is_module=True)
    program = Launch("bash", ("-c", "secret"), no_python=True)
    shown = [shown_command(one, python="/my env/python") for one in (script, module, program)]

    assert shown == [
        ("/my env/python", "-u", "train.py"),
        ("/my env/python", "-u", "-m", "pkg.train"),
        ("bash",),
    ]
    one = describe_program(
        "train.py", (), is_module=False, user="", may_differ=False, worker_command=shown[0]
    )
    assert one.worker_command == "'/my env/python' -u train.py"


def test_long_command_line_is_cut_and_compared_whole() -> None:
    """However long the arguments are, the message stays small, and their end counts too."""
    long = "x" * 1_000_000
    one, other = describe("train.py", long, "1"), describe("train.py", long, "2")

    assert COMMAND_LINE_CHARS_MAX == len(one.command_line)
    assert one.command_line == other.command_line
    assert one.arguments_digest != other.arguments_digest
    assert one.ByteSize() < 5_000


def test_any_bytes_may_be_an_argument() -> None:
    """An argument that is no UTF-8, or would move the cursor, is shown as printable characters."""
    command_line = describe("train.py", "\udcff\x1b[31m\n").command_line

    assert command_line.isprintable()


@pytest.mark.parametrize(
    ("one", "other"), [(("a", "b"), ("ab",)), (("a", "b"), ("b", "a")), ((), ("",))]
)
def test_digests_of_other_arguments_differ(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """Where an argument ends, and the order, count."""
    assert describe("t", *one).arguments_digest != describe("t", *other).arguments_digest


@pytest.mark.parametrize(
    ("environment", "user"),
    [
        ({"LOGNAME": "a", "USER": "b"}, "a"),
        ({"USER": "b"}, "b"),
        ({"LOGNAME": ""}, "ada"),
    ],
)
def test_user_is_known_without_a_look_up(
    environment: dict[str, str], user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a variable or the file of the host; a container may have neither."""
    (tmp_path / "passwd").write_text("\nroot:x:0:0\nbroken\nada:x:7:7::/:/bin/sh\nlate:x:7:7\n")
    monkeypatch.setattr(program, "PASSWD", str(tmp_path / "passwd"))
    assert user == find_user(environment, 7)
    assert find_user({}, 8) == "uid 8"
    monkeypatch.setattr(program, "PASSWD", str(tmp_path))

    assert find_user({}, 7) == "uid 7"
