"""The flags for the program of the workers: a wrong way to start one is refused with advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from rallypoint.cli.flags.agent import workload
from rallypoint.cli.flags.parser import Parser


@pytest.mark.parametrize(
    ("argv", "advice"),
    [
        (("mine",), "; to run the program mine, add --no-python"),
        (
            ("accelerate", "launch", "train.py"),
            "; to keep its configuration: --no-python accelerate launch --num_processes 1 …",
        ),
        (("accelerate", "env"), "; to run the program accelerate, add --no-python"),
        (
            ("torchrun", "train.py"),
            "; torchrun starts workers itself: give the script that it would start",
        ),
        (("missing.py",), ""),
        (("./bin/mine",), ""),
    ],
)
def test_program_in_place_of_a_script(
    argv: tuple[str, ...],
    advice: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A program on PATH is no script: the message says how to start it; another word is missing."""
    for name in ("mine", "accelerate", "torchrun"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.touch(0o755)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    args = Parser("p", "", workload.GROUPS, takes_program=True).read(argv, {})
    with pytest.raises(SystemExit) as caught:
        workload.check(args)

    assert caught.value.code == 2
    text = capsys.readouterr().err
    assert text == f"p: error: {argv[0]}: no such script in {here}{advice}\n"
