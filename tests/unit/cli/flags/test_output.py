"""The flags for output: what they mean, and that a bad one is one line and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.agent.output.destinations import ALL, Choice, OutputSpec, Ranks, Streams
from rallypoint.cli.flags.agent import output
from rallypoint.cli.flags.parser import Parser


def parse(*argv: str) -> OutputSpec:
    args = Parser("p", "", output.GROUPS).read(argv, {})
    output.check(args)
    return output.parse_spec(args)


def test_nothing_is_asked_for_by_default() -> None:
    """No flag: everything to the console, as it is."""
    assert parse() == OutputSpec()
    assert parse("--log-dir=", "-r=0", "--local-ranks-filter=", "--log-line-prefix-template=") == (
        OutputSpec(redirects=(Choice(ALL, Streams.NONE),))
    )


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("3", [(ALL, 3)]),
        ("0:3", [(Ranks(0, 0), 3)]),
        ("0:1,1:2,12:0", [(Ranks(0, 0), 1), (Ranks(1, 1), 2), (Ranks(12, 12), 0)]),
        ("0-3:1", [(Ranks(0, 3), 1)]),
        ("g8:1,g8-15:3", [(Ranks(8, 8, True), 1), (Ranks(8, 15, True), 3)]),
    ],
)
@pytest.mark.parametrize("flag", ["-r", "--redirects", "-t", "--tee"])
def test_streams_of_workers(flag: str, text: str, chosen: list[tuple[Ranks, int]]) -> None:
    """Torchrun's two forms, without its end at rank 9, and ranges and global ranks."""
    spec = parse(flag, text)
    expected = tuple(Choice(ranks, Streams(value)) for ranks, value in chosen)

    assert (spec.tee if flag in ("-t", "--tee") else spec.redirects) == expected


@pytest.mark.parametrize(
    ("argv", "idle"),
    [
        ((), ()),
        (("-r3", "--duplicate-stdout-filters=x"), ("--duplicate-stdout-filters",)),
        (
            ("-t2", "--duplicate-stdout-filters=x", "--duplicate-stderr-filters=x"),
            ("--duplicate-stdout-filters",),
        ),
        (("-t1:1", "--duplicate-stdout-filters=x"), ()),
        (("--logs-specs=other", "--duplicate-stdout-filters=x"), ()),
    ],
)
def test_filter_without_tee_is_idle(argv: tuple[str, ...], idle: tuple[str, ...]) -> None:
    """A filter selects lines of tee'd streams, as under torchrun; of others it finds none."""
    args = Parser("p", "", output.GROUPS).read(argv, {})

    assert output.idle_filters(args) == idle


def test_filters_and_needles() -> None:
    """Local ranks, global ranks; two commas are one, and an empty needle is none."""
    spec = parse(
        "--local-ranks-filter=0, 2",
        "--ranks-filter=0,8-15",
        "--duplicate-stdout-filters=loss,,acc,,,step",
        "--duplicate-stderr-filters=ä,",
    )

    assert spec.shown_local == (Ranks(0, 0), Ranks(2, 2))
    assert spec.shown_global == (Ranks(0, 0, True), Ranks(8, 15, True))
    assert spec.stdout_needles == (b"loss,acc,", b"step")
    assert spec.stderr_needles == ("ä".encode(),)


def test_prefix_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag wins over torchrun's variable."""
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${rank}] ")

    assert parse().prefix_template == "[${rank}] "
    assert parse("--log-line-prefix-template", "x").prefix_template == "x"


def test_log_dir_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is absolute from then on; /dev/null is no folder."""
    monkeypatch.chdir(tmp_path)

    assert parse("--log-dir=a/b").log_dir == str(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert parse("--log-dir=/dev/null").log_dir == "/dev/null"


@pytest.mark.parametrize(
    "argv",
    [
        *(("-r", text) for text in ("4", "", "x", "0:4", "0:3,", "0-:1", "3-1:2", "-1:2", "h0:1")),
        *(("--tee", text) for text in ("0:", "g:1", "0:1;1:2", "33", "1000000000000:1")),
        ("--local-ranks-filter", "a"),
        ("--local-ranks-filter", "0,,1"),
        ("--local-ranks-filter", "g1"),
        ("--ranks-filter", "8-"),
        ("--log-dir", "/dev/full"),
        ("--log-dir", "/dev/full/x"),
        ("--log-dir", "/proc/nothing"),
    ],
)
def test_bad_value_is_one_line(argv: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """It names the flag, and the exit code is 2."""
    with pytest.raises(SystemExit) as caught:
        parse("=".join(argv))
    text = capsys.readouterr().err

    assert caught.value.code == 2
    assert text.startswith("p: error: ") and text.count("\n") == 1
    assert {"-r": "--redirects"}.get(argv[0], argv[0]) in text
