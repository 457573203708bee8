"""--help: what matters first, everything on request, at any width."""

from __future__ import annotations

import pytest

from rallypoint.cli.commands.agent.command import BASICS, build_parser
from rallypoint.cli.commands.coordinator import build_parser as build_coordinator_parser
from rallypoint.cli.commands.journal.command import MENU
from rallypoint.cli.commands.journal.command import PARSERS as JOURNAL_PARSERS
from rallypoint.cli.commands.overview import MENU as OVERVIEW
from rallypoint.cli.flags.help import format_help
from rallypoint.cli.flags.menu import Menu
from rallypoint.cli.flags.parser import Parser

PARSERS = (
    build_parser(),
    build_parser("rallypoint agent"),
    build_coordinator_parser(),
    *JOURNAL_PARSERS.values(),
)


def test_short_help_has_the_basics_and_examples() -> None:
    """Five flags and the script, four examples, and where the rest is; on one screen."""
    text = format_help(build_parser(), 80, is_whole=False)

    assert [line.split()[0] for line in text.splitlines() if line.startswith("  --")] == [*BASICS]
    assert "  script [args ...]" in text
    assert text.count("\n  node-agent ") == 4
    assert text.endswith("All flags: node-agent --help-all")
    assert len(text.splitlines()) <= 40


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_whole_help_has_every_flag_once(parser: Parser) -> None:
    """The basics among them."""
    lines = format_help(parser, 80, is_whole=True).splitlines()
    heads = [line for line in lines if line.startswith("  -")]

    for flag in parser.flags():
        assert len([head for head in heads if flag.name in head[:34].split()]) == 1, flag.name


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
@pytest.mark.parametrize("width", [72, 80, 110])
def test_lines_fit(parser: Parser, width: int) -> None:
    """Only an example may be too long: a person copies it whole."""
    for line in format_help(parser, width, is_whole=True).splitlines():
        assert len(line) <= width or line.startswith((f"  {parser.prog} ", "Usage:"))


def test_coordinator_has_one_help() -> None:
    """With so few flags the short one is the whole."""
    parser = build_coordinator_parser()

    assert format_help(parser, 80, is_whole=False) == format_help(parser, 80, is_whole=True)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_texts_are_of_one_style(parser: Parser) -> None:
    """No full stop, no default in the prose, and short."""
    for flag in parser.flags():
        assert not flag.help.endswith("."), flag.name
        assert flag.help[0].islower() or flag.help.startswith("MASTER_"), flag.name
        assert "default" not in flag.help, flag.name
        assert len(flag.help) <= 160, flag.name


@pytest.mark.parametrize("word", ["-h", "--help", "--help-all", "--version"])
def test_printing_flags_win(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They need no script, and no other value is looked at."""
    with pytest.raises(SystemExit) as caught:
        build_parser().read(["--nnodes=x", word], {"PET_NNODES": "y"})

    assert caught.value.code == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("menu", [OVERVIEW, MENU], ids=lambda menu: menu.prog)
def test_menus_fit(menu: Menu) -> None:
    """Each command in a line of 80 columns, in the style of flags."""
    lines = menu.help().splitlines()

    assert [line for line in lines if len(line) > 80] == []
    assert [name for name, text in menu.commands.items() if text.endswith(".")] == []


def test_a_flag_in_the_prose_is_not_split() -> None:
    """A person searches for it, and copies it."""
    usage = Parser("rallypoint x", "The next round waits for --fence-after.", ())

    assert "--fence-after" in format_help(usage, 36, is_whole=True)
