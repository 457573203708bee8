"""Words that a command needs, between its flags."""

from __future__ import annotations

import pytest

from rallypoint.base.values import BadValue, positive_int, text
from rallypoint.cli.flags.flag import Flag, Group, Operand
from rallypoint.cli.flags.parser import Parser


def place(word: str) -> str:
    """Refuse one word, as a real parser does."""
    if word == "nowhere":
        raise BadValue(f"{word!r} is no place")
    return word


PARSER = Parser(
    prog="move",
    summary="Move something.",
    operands=(
        Operand(name="FROM", help="where it is", parse=place),
        Operand(name="TO", help="where it goes", parse=place),
    ),
    groups=(
        Group(
            "Which",
            (
                Flag(names=("--last",), parse=positive_int, metavar="N", default=0, help="so many"),
                Flag(names=("-j", "--job"), parse=text, metavar="ID", default="", help="of it"),
                Flag(names=("--all",), help="all"),
            ),
        ),
    ),
)


@pytest.mark.parametrize(
    "line",
    [
        "a b --last 3 --job x",
        "--last 3 a --job=x b",
        "--last=3 -jx a b",
        "a --last 3 -j x -- b",
        "--last 3 --job x -- a b",
    ],
)
def test_flags_stand_anywhere(line: str) -> None:
    """Before, between and after the words; after `--` every word is one."""
    values = PARSER.read(line.split(), {})

    assert (getattr(values, "from"), values.to) == (
        "a",
        "b",
    )
    assert (values.last, values.job, values.all) == (3, "x", False)


def test_word_after_the_end_of_flags_is_no_flag() -> None:
    """A file may have any name."""
    values = PARSER.read(["--", "--all", "b"], {})

    assert (getattr(values, "from"), values.all) == ("--all", False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "no FROM given (see move --help)"),
        ("a --all", "no TO given (see move --help)"),
        ("a b c", "unexpected argument 'c' (see move --help)"),
        ("a nowhere", "TO: 'nowhere' is no place (see move --help)"),
        ("a b --lats 3", "unknown flag --lats; did you mean --last? (see move --help)"),
        ("a b --last", "--last needs a value (see move --help)"),
    ],
)
def test_mistake_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the name of what is missing or wrong."""
    with pytest.raises(SystemExit) as caught:
        PARSER.read(line.split(), {})

    assert caught.value.code == 2
    assert capsys.readouterr().err == f"move: error: {message}\n"
